// A load balancer of the simplest kind: each request goes to the next of the targets, whatever was there before. It changes
// nothing, keeps no connection to a target, and ends an exchange where either side does.

import { Agent, createServer, request as httpRequest } from 'node:http'
import { parseArgs } from 'node:util'

const { values } = parseArgs({ options: { port: { type: 'string' }, target: { type: 'string', multiple: true } } })
const targets = values.target.map((target) => new URL(target))
const agent = new Agent({ keepAlive: false, maxSockets: Infinity })
let turn = 0

const server = createServer((incoming, outgoing) => {
  const target = targets[turn++ % targets.length]
  const options = {
    agent, host: target.hostname, port: target.port, method: incoming.method, path: incoming.url,
    headers: incoming.rawHeaders, setHost: false,
  }
  const forwarded = httpRequest(options, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.statusMessage, answer.rawHeaders)
    // The head of a stream goes on before its first event.
    outgoing.flushHeaders()
    answer.pipe(outgoing)
    answer.on('error', () => outgoing.destroy())
  })
  forwarded.on('error', () => (outgoing.headersSent ? outgoing.destroy() : outgoing.writeHead(502).end()))
  outgoing.on('close', () => forwarded.destroy())
  incoming.pipe(forwarded)
})
server.keepAliveTimeout = 60_000
server.listen(Number(values.port), '127.0.0.1')
