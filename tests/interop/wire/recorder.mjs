// A reverse proxy that writes down every MCP message that passes, in both directions, as JSON lines.
//
// It changes nothing: bytes are forwarded as they come and read on the side. Each line has the exchange it
// belongs to; `kind` is request, response, message or end. validate.mjs and rules.mjs read the file afterwards.
// --authorization is for clients that can't send one themselves: it is added to requests that have none, and neither
// Host nor Origin is touched by it.

import { createHash } from 'node:crypto'
import { appendFileSync } from 'node:fs'
import { Agent, createServer, request as httpRequest } from 'node:http'
import { parseArgs } from 'node:util'
import { SseReader } from './sse_reader.mjs'

const { values } = parseArgs({
  options: { port: { type: 'string' }, target: { type: 'string' }, log: { type: 'string' }, authorization: { type: 'string' } },
})
const target = new URL(values.target)
// A connection for each exchange: one that the server closes just when it is used again would be the recorder's fault.
const agent = new Agent({ keepAlive: false, maxSockets: Infinity })
let exchanges = 0

const write = (line) => appendFileSync(values.log, `${JSON.stringify({ ...line, at: Date.now() })}\n`)

/** Tells callers apart without writing down their keys. */
const callerOf = ({ authorization, 'x-api-key': key }) =>
  (authorization ?? key) && createHash('sha256').update(authorization ?? key).digest('hex').slice(0, 12)

/** The headers that repeat what is in the body. */
const mirrors = (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) => name.startsWith('mcp-') && name !== 'mcp-session-id'))

/** Writes down one JSON text: a message, a batch of them, or something that is no JSON. */
function writeMessages(text, line) {
  let parsed
  try {
    parsed = JSON.parse(text)
  } catch {
    write({ ...line, kind: 'message', unreadable: text.slice(0, 1000) })
    return
  }
  for (const message of Array.isArray(parsed) ? parsed : [parsed]) write({ ...line, kind: 'message', message })
}

/** Reads a response body on the side, as far as its content type lets it hold messages. */
function responseReader(contentType, line) {
  if (contentType.startsWith('text/event-stream')) {
    const reader = new SseReader(({ id, data }) => {
      if (data !== '') writeMessages(data, { ...line, via: 'sse', eventId: id })
    })
    return { push: (chunk) => reader.push(chunk), end: () => {} }
  }
  const chunks = []
  return {
    push: (chunk) => chunks.push(chunk),
    end() {
      const text = Buffer.concat(chunks).toString('utf8')
      if (text === '') return
      if (contentType.startsWith('application/json')) writeMessages(text, { ...line, via: 'json' })
      else write({ ...line, kind: 'message', other: text.slice(0, 1000) })
    },
  }
}

function forward(incoming, outgoing, body) {
  const exchange = ++exchanges
  const headers = { ...incoming.headers }
  // Only the recorder's own address is replaced; any other Host is part of a test.
  if (headers.host === `127.0.0.1:${values.port}` || headers.host === `localhost:${values.port}`) headers.host = target.host
  if (values.authorization !== undefined) headers.authorization ??= values.authorization
  const asked = {
    exchange,
    method: incoming.method,
    path: incoming.url,
    session: headers['mcp-session-id'],
    version: headers['mcp-protocol-version'],
    accept: headers.accept,
    resumes: headers['last-event-id'],
    caller: callerOf(headers),
    headers: mirrors(headers),
  }
  write({ ...asked, kind: 'request' })
  if (body.length > 0) writeMessages(body.toString('utf8'), { exchange, from: 'client', session: asked.session })

  const onward = httpRequest(
    { host: target.hostname, port: target.port, method: incoming.method, path: incoming.url, headers, agent })
  onward.on('response', (response) => {
    const contentType = response.headers['content-type'] ?? ''
    const session = response.headers['mcp-session-id'] ?? asked.session
    const opened = response.headers['mcp-session-id']
    write({ exchange, kind: 'response', status: response.statusCode, contentType, session, opened })
    const reader = responseReader(contentType, { exchange, from: 'server', session })
    outgoing.writeHead(response.statusCode, response.rawHeaders)
    outgoing.flushHeaders()
    response.on('data', (chunk) => {
      reader.push(chunk)
      if (!outgoing.write(chunk)) response.pause()
    })
    outgoing.on('drain', () => response.resume())
    response.on('end', () => {
      reader.end()
      write({ exchange, kind: 'end', how: 'complete' })
      outgoing.end()
    })
    response.on('error', () => {
      write({ exchange, kind: 'end', how: 'cut' })
      outgoing.destroy()
    })
  })
  onward.on('error', (failure) => {
    if (outgoing.headersSent || outgoing.destroyed) return
    write({ exchange, kind: 'end', how: `unreachable: ${failure.code}` })
    outgoing.writeHead(502).end()
  })
  outgoing.on('close', () => {
    if (outgoing.writableFinished) return
    write({ exchange, kind: 'end', how: 'left' })
    onward.destroy()
  })
  onward.end(body)
}

createServer((incoming, outgoing) => {
  const chunks = []
  incoming.on('data', (chunk) => chunks.push(chunk))
  incoming.on('end', () => forward(incoming, outgoing, Buffer.concat(chunks)))
}).listen(Number(values.port), '127.0.0.1')
