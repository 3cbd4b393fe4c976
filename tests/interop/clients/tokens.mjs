// Tokens by hand, for what no SDK sends: tokens that have to be refused, keys that change, an authorization server that is
// down. --url is where the gateway's routes are, /signed/mcp, /clients/mcp and /opaque/mcp.

import { createHmac, createPublicKey } from 'node:crypto'
import { check, expect, expectSame, options } from './checks.mjs'

const META = 'io.modelcontextprotocol/'
const SIGNED = `${options.url}/signed/mcp`
const ES256 = `${options.url}/clients/mcp`
const OPAQUE = `${options.url}/opaque/mcp`
const ENDS = 10_000 // until a token of two seconds is refused
const RECOVERS = 45_000 // until a new key is asked for again
const LONG = RECOVERS + 10_000
const SCOPE = 'mcp:read'

const body = JSON.stringify({
  jsonrpc: '2.0', id: 1, method: 'tools/list',
  params: { _meta: { [`${META}protocolVersion`]: '2026-07-28', [`${META}clientCapabilities`]: {}, [`${META}clientInfo`]: { name: 'tokens', version: '1.0.0' } } },
})

/** What the gateway answers to a request with this token. */
async function ask(url, token) {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': 'application/json', accept: 'application/json, text/event-stream',
      'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/list',
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
    },
    body,
  })
  return { status: response.status, challenge: response.headers.get('www-authenticate'), text: await response.text() }
}

async function control(path, given = {}) {
  const response = await fetch(options.control + path, { method: 'POST', body: JSON.stringify(given) })
  if (!response.ok) throw new Error(`${path}: ${await response.text()}`)
  return response.json()
}

/** A token of the authorization server, by client credentials. */
async function tokenFor(resource, client = 'reporter') {
  const response = await fetch(`${options.issuer}/token`, {
    method: 'POST',
    headers: { authorization: `Basic ${btoa(`${client}:secret-of-${client}`)}` },
    body: new URLSearchParams({ grant_type: 'client_credentials', resource, scope: SCOPE }),
  })
  const answer = await response.json()
  if (answer.access_token === undefined) throw new Error(JSON.stringify(answer))
  return answer.access_token
}

const good = { sub: 'minted', org_id: 'acme', role: 'reader', client_id: 'by-hand', scope: SCOPE, aud: SIGNED }
const mint = async (claims = {}, header = {}) => (await control('/mint', { claims: { ...good, ...claims }, header })).token
const now = () => Math.floor(Date.now() / 1000)
const base64 = (value) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url')
const headerOf = (token) => JSON.parse(Buffer.from(token.split('.')[0], 'base64url'))

async function passes(url, token, why = '') {
  const { status, text } = await ask(url, token)
  expect(status === 200 && text.includes('"echo"'), `${why} answered ${status}: ${text.slice(0, 200)}`)
}

/** Asks again and again until a token is answered with this status. */
async function until(status, url, token, limit) {
  const end = Date.now() + limit
  for (;;) {
    const answer = await ask(url, token)
    if (answer.status === status) return answer
    expect(Date.now() < end, `still answered ${answer.status} after ${limit} ms`)
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

await check('tokens of client credentials are good, by RS256, by ES256 and asked about', async () => {
  for (const url of [SIGNED, ES256, OPAQUE]) await passes(url, await tokenFor(url), url)
  await passes(SIGNED, await mint(), 'one that was minted')
})

// Before the tokens of unknown keys: whoever sends those has the next new key wait.
await check('keys change while calls are made: not one fails', async () => {
  const old = await tokenFor(SIGNED)
  let stop = false
  let calls = 0
  const caller = async (next) => {
    while (!stop) {
      await passes(SIGNED, await next(), `call ${calls}`)
      calls += 1
    }
  }
  const callers = [caller(() => old), caller(() => old), caller(() => mint()), caller(() => tokenFor(SIGNED))]
  const before = headerOf(await tokenFor(SIGNED)).kid
  await control('/rotate')
  const token = await tokenFor(SIGNED)
  expect(headerOf(token).kid !== before, 'the key did not change')
  await passes(SIGNED, token, 'the first of the new key')
  const enough = calls + 40
  await Promise.race([Promise.all(callers), (async () => { while (calls < enough) await new Promise((resolve) => setTimeout(resolve, 20)) })()])
  stop = true
  await Promise.all(callers)
})

for (const [name, make] of Object.entries(await refusals())) {
  await check(`refused: ${name}`, async () => {
    const { url = SIGNED, token } = await make()
    const refused = await ask(url, token)
    expect(refused.status === 401, `answered ${refused.status}: ${refused.text.slice(0, 200)}`)
    expect(/error="invalid_token"/.test(refused.challenge), `challenge: ${refused.challenge}`)
    const [unknown, none] = [await ask(url, 'never-issued'), await ask(url)]
    expectSame(refused, unknown, 'as a token that was never issued')
    expect(none.text === refused.text && !none.challenge.includes('error='), `without a token: ${none.challenge}, ${none.text}`)
  })
}

/** Tokens that are wrong in one way each. */
async function refusals() {
  const { keys } = await (await fetch(`${options.issuer}/jwks`)).json()
  const rsa = keys.find(({ kty }) => kty === 'RSA')
  const pem = createPublicKey({ key: rsa, format: 'jwk' }).export({ type: 'spki', format: 'pem' })
  const confused = (secret, header = {}) => {
    const signed = `${base64({ alg: 'HS256', typ: 'at+jwt', kid: rsa.kid, ...header })}.${base64({ iss: options.issuer, iat: now(), exp: now() + 600, ...good })}`
    return `${signed}.${createHmac('sha256', secret).update(signed).digest('base64url')}`
  }
  const unsigned = (alg) => `${base64({ alg, typ: 'at+jwt' })}.${base64({ iss: options.issuer, iat: now(), exp: now() + 600, ...good })}.`
  const changed = async () => {
    const [header, claims, signature] = (await mint()).split('.')
    const more = { ...JSON.parse(Buffer.from(claims, 'base64url')), role: 'admin' }
    return [header, base64(more), signature].join('.')
  }
  const of = (make) => async () => ({ token: await make() })
  return {
    'a token for another route': of(() => tokenFor(ES256)),
    'a token for another server': of(() => tokenFor('http://127.0.0.1:1/clients/mcp')),
    'a token for nobody': of(() => mint({ aud: null })),
    'a token that has ended': of(() => mint({ iat: now() - 700, exp: now() - 100 })),
    'a token that is not valid yet': of(() => mint({ nbf: now() + 300 })),
    'a token from the future': of(() => mint({ iat: now() + 300 })),
    'a token without an end': of(() => mint({ exp: null })),
    'a token of another issuer': of(() => mint({ iss: 'http://127.0.0.1:1' })),
    'a token without a tenant': of(() => mint({ org_id: null })),
    'an ID token': of(() => mint({}, { typ: 'id_token+jwt' })),
    'a token with an extension that counts': of(() => mint({}, { crit: ['b64'], b64: true })),
    'a key that nobody published': of(() => mint({}, { kid: "../../etc/passwd' OR 1=1" })),
    'the key of another algorithm': of(() => mint({}, { kid: keys.find(({ kty }) => kty === 'EC').kid })),
    'no signature': of(() => unsigned('none')),
    'no signature, in other letters': of(() => unsigned('nOnE')),
    'the public key as a secret, its PEM': of(() => confused(pem)),
    'the public key as a secret, its JWK': of(() => confused(JSON.stringify(rsa))),
    'a secret beside the token': of(() => confused('mine', { jwk: { kty: 'oct', k: base64('mine') }, kid: 'mine' })),
    'claims that were changed': of(changed),
    'an opaque token for another route': async () => ({ url: OPAQUE, token: await tokenFor('http://127.0.0.1:1/opaque/mcp') }),
    'a signed token where tokens are asked about': async () => ({ url: OPAQUE, token: await tokenFor(SIGNED) }),
  }
}

await check('a token in the query does not count', async () => {
  const { status } = await ask(`${SIGNED}?access_token=${await tokenFor(SIGNED)}`)
  expect(status === 401, `answered ${status}`)
})

await check('too few scopes: 403 with those that are needed', async () => {
  const { status, challenge } = await ask(SIGNED, await mint({ scope: 'other' }))
  expect(status === 403, `answered ${status}`)
  expect(/error="insufficient_scope"/.test(challenge) && /scope="[^"]*mcp:read/.test(challenge) && /resource_metadata=/.test(challenge), `challenge: ${challenge}`)
})

await check('a token is good until it ends, and not after, signed or asked about', async () => {
  for (const url of [SIGNED, OPAQUE]) {
    const token = await tokenFor(url, 'brief')
    await passes(url, token)
    await until(401, url, token, ENDS)
  }
})

await check('the authorization server is down: known keys go on, an unknown one waits for it', async () => {
  const known = await mint()
  await control('/down')
  try {
    await passes(SIGNED, known, 'a token that was never seen, of a known key')
    await control('/rotate')
    const { status } = await ask(SIGNED, await mint())
    expect([401, 503].includes(status), `a token of an unknown key: ${status}`)
    await passes(SIGNED, known, 'a token of a known key, afterwards')
    await control('/retire')
  } finally {
    await control('/up')
  }
  await until(200, SIGNED, await mint(), RECOVERS)
  await until(401, SIGNED, known, ENDS) // its key is no longer among those that are published
}, LONG)

await check('a server that is asked about tokens is down: nobody is let in, and nobody is told that the token is bad', async () => {
  const [known, fresh] = [await tokenFor(OPAQUE), await tokenFor(OPAQUE)]
  await passes(OPAQUE, known)
  await control('/down')
  try {
    const { status, challenge } = await ask(OPAQUE, fresh)
    expect(status === 503 && challenge === null, `answered ${status}, ${challenge}`)
  } finally {
    await control('/up')
  }
  await until(200, OPAQUE, fresh, RECOVERS)
}, LONG)

await check("the server behind no longer takes the gateway's token: another one is got, and the call is made", async () => {
  await control('/rotate')
  await control('/retire')
  await until(200, ES256, await tokenFor(ES256), RECOVERS)
}, LONG)
