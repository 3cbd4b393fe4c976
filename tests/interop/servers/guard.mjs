// What stands before a server that takes only tokens of its own: checks each bearer, and writes down every request.
//
//   node guard.mjs --port PORT --issuer URL --target ORIGIN --record FILE
//
// /open/mcp needs no token; /clients/mcp and /exchanged/mcp need one of the issuer for exactly that URL. All are /mcp of
// the target. The record has a JSON line for each request, whole, with the claims that let it pass.

import { appendFileSync } from 'node:fs'
import { Agent, createServer, request as httpRequest } from 'node:http'
import { parseArgs } from 'node:util'
import { createRemoteJWKSet, jwtVerify } from 'jose'

const { values } = parseArgs({
  options: { port: { type: 'string' }, issuer: { type: 'string' }, target: { type: 'string' }, record: { type: 'string' } },
})
const own = `http://127.0.0.1:${values.port}`
const target = new URL(values.target)
// Asked for each time, so that a key that is withdrawn counts no longer.
const keys = createRemoteJWKSet(new URL('/jwks', values.issuer), { cooldownDuration: 0, cacheMaxAge: 0 })
const agent = new Agent({ keepAlive: false, maxSockets: Infinity })

/** What the bearer says, or why it does not count. */
async function claimsOf({ url, headers }) {
  const [, token] = /^Bearer (\S+)$/.exec(headers.authorization ?? '') ?? []
  if (token === undefined) return { why: 'no token' }
  try {
    return (await jwtVerify(token, keys, { issuer: values.issuer, audience: own + url, algorithms: ['RS256', 'ES256'] })).payload
  } catch (failure) {
    return { why: failure.code }
  }
}

function forward(incoming, outgoing, body) {
  const { authorization, ...headers } = incoming.headers
  const onward = httpRequest({
    host: target.hostname, port: target.port, method: incoming.method, path: '/mcp', headers: { ...headers, host: target.host }, agent,
  })
  onward.on('response', (response) => {
    outgoing.writeHead(response.statusCode, response.rawHeaders)
    outgoing.flushHeaders()
    response.pipe(outgoing)
    response.on('error', () => outgoing.destroy())
  })
  onward.on('error', () => (outgoing.headersSent ? outgoing.destroy() : outgoing.writeHead(502).end()))
  outgoing.on('close', () => onward.destroy())
  onward.end(body)
}

createServer(async (incoming, outgoing) => {
  const chunks = []
  for await (const chunk of incoming) chunks.push(chunk)
  const body = Buffer.concat(chunks)
  const open = incoming.url === '/open/mcp'
  const claims = open ? {} : await claimsOf(incoming)
  const { method, url, rawHeaders } = incoming
  appendFileSync(values.record, `${JSON.stringify({ method, url, rawHeaders, body: body.toString('utf8'), claims })}\n`)
  if (!open && claims.why !== undefined) {
    outgoing.writeHead(401, { 'www-authenticate': `Bearer realm="guard", error="invalid_token", resource_metadata="${own}/none"` }).end()
    return
  }
  forward(incoming, outgoing, body)
}).listen(Number(values.port), '127.0.0.1')
