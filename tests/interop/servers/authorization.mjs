// An authorization server for the legs with tokens: the npm package oidc-provider, with people who agree to everything.
//
//   node authorization.mjs --port PORT --control PORT [--opaque TEXT] [--es256 TEXT]
//
// Access tokens are for one resource (RFC 8707): opaque where the resource's URL has the text --opaque, else JWTs, signed
// by ES256 where it has --es256, else by RS256. A browser says who sits before it in the header `x-account`. What a test
// needs besides is on the control port:
//
//   POST /rotate   new keys sign from now on; the old ones stay published      POST /retire   only the newest are published
//   POST /down     no connection is accepted                                   POST /up       they are again
//   POST /mint     a token with these {claims, header}, none where null, by the newest key of its algorithm
//   GET  /journal  every answer of the token endpoint: {grant, client, resource, token}; and introspections: {introspected}

import { createPrivateKey, generateKeyPairSync } from 'node:crypto'
import { createServer } from 'node:http'
import { parseArgs } from 'node:util'
import { createLocalJWKSet, jwtVerify, SignJWT } from 'jose'
import Provider, { errors } from 'oidc-provider'

const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token'
const SCOPES = 'mcp:read mcp:write mcp:admin'
const LIFE = 600
const BRIEF = 2

const { values } = parseArgs({
  options: { port: { type: 'string' }, control: { type: 'string' }, opaque: { type: 'string' }, es256: { type: 'string' } },
})
const issuer = `http://127.0.0.1:${values.port}`

/** What tokens say of people, and of programs that act for themselves. */
const claims = {
  alice: { org_id: 'acme', role: 'admin' },
  bob: { org_id: 'acme', role: 'reader' },
  carol: { org_id: 'globex', role: 'admin' },
  reporter: { org_id: 'acme', role: 'reader' },
  brief: { org_id: 'acme', role: 'reader' },
}

const program = (client_id, ...grants) => ({
  client_id, client_secret: `secret-of-${client_id}`, grant_types: grants, redirect_uris: [], response_types: [],
  token_endpoint_auth_method: 'client_secret_basic',
})
const clients = [
  program('taskgate', 'client_credentials', EXCHANGE),
  program('reporter', 'client_credentials'),
  program('brief', 'client_credentials'), // its tokens do not live long
]

const journal = []
let generation = 0
let keys = []
let answer
let interact

function newKey(type, options, alg) {
  const { privateKey } = generateKeyPairSync(type, options)
  return { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg, kid: `${alg.toLowerCase()}-${generation}` }
}

/** Has the newest keys sign. The state of the server is the adapter's, which outlives the provider. */
function rotate() {
  generation += 1
  keys = [newKey('rsa', { modulusLength: 2048 }, 'RS256'), newKey('ec', { namedCurve: 'P-256' }, 'ES256'), ...keys]
  start()
}

function start() {
  const provider = new Provider(issuer, configuration())
  provider.registerGrantType(EXCHANGE, exchange, ['subject_token', 'subject_token_type', 'resource', 'audience', 'scope'])
  provider.on('grant.success', ({ oidc: { params, client }, body }) => journal.push({
    grant: params.grant_type, client: client.clientId, resource: params.resource, token: body.access_token,
  }))
  provider.on('grant.error', ({ oidc }, { error, error_description: why }) =>
    journal.push({ grant: oidc.params?.grant_type, client: oidc.client?.clientId, error, why }))
  provider.on('server_error', (_ctx, failure) => console.error(failure))
  provider.use(async (ctx, next) => {
    await next()
    if (ctx.oidc?.route === 'introspection') journal.push({ introspected: ctx.oidc.params?.token, active: ctx.body?.active })
  })
  answer = provider.callback()
  interact = interaction(provider)
}

const configuration = () => ({
  clients,
  jwks: { keys },
  cookies: { keys: ['only-for-tests'] },
  scopes: ['openid', 'offline_access'],
  ttl: { ClientCredentials: (_ctx, _token, client) => (client.clientId === 'brief' ? BRIEF : LIFE) },
  findAccount: (_ctx, sub) => (claims[sub] ? { accountId: sub, claims: () => ({ sub }) } : undefined),
  extraTokenClaims: (_ctx, token) => ({ ...claims[token.accountId ?? token.clientId], ...token.extra }),
  issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
  interactions: { url: (_ctx, { uid }) => `/interaction/${uid}` },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    introspection: { enabled: true, allowedPolicy: (_ctx, client) => client.clientId === 'taskgate' },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_ctx, resource) => describe(resource),
    },
  },
})

/** What tokens for a resource look like. */
function describe(resource) {
  const has = (text) => text !== undefined && resource.includes(text)
  return {
    scope: SCOPES,
    audience: resource,
    accessTokenFormat: has(values.opaque) ? 'opaque' : 'jwt',
    jwt: { sign: { alg: has(values.es256) ? 'ES256' : 'RS256' } },
  }
}

/** The pages that ask: who is there is known by a header, and whoever it is agrees to everything. */
const interaction = (provider) => async (request, response) => {
  const { prompt, params, session } = await provider.interactionDetails(request, response)
  const accountId = request.headers['x-account']
  let result = { error: 'access_denied', error_description: 'nobody is there' }
  if (prompt.name === 'login' && claims[accountId]) result = { login: { accountId } }
  if (prompt.name === 'consent') result = { consent: { grantId: await agree(provider, params, session) } }
  await provider.interactionFinished(request, response, result)
}

async function agree(provider, { client_id: clientId, scope = '', resource = [] }, { accountId }) {
  const grant = new provider.Grant({ accountId, clientId })
  grant.addOIDCScope(scope)
  for (const one of [resource].flat()) grant.addResourceScope(one, scope)
  return grant.save()
}

/** RFC 8693: the caller's token for one of another audience, in which the client that asked stands as the actor. */
async function exchange(ctx) {
  const { params, client, provider } = ctx.oidc
  if (params.subject_token_type !== ACCESS_TOKEN) throw new errors.InvalidRequest('subject_token_type')
  if (!params.resource) throw new errors.InvalidTarget('a resource has to be named')
  const subject = await subjectOf(params.subject_token, provider)
  const scope = params.scope ?? subject.scope
  const token = new provider.AccessToken({ accountId: subject.sub, client, gty: 'token_exchange', scope })
  token.resourceServer = new provider.ResourceServer(params.resource, describe(params.resource))
  token.extra = { act: { sub: client.clientId }, subject_client: subject.client_id }
  ctx.oidc.entity('AccessToken', token)
  ctx.body = {
    access_token: await token.save(), issued_token_type: ACCESS_TOKEN, token_type: 'Bearer', expires_in: token.expiration, scope,
  }
}

async function subjectOf(token, provider) {
  const opaque = await provider.AccessToken.find(token)
  if (opaque) return { sub: opaque.accountId, client_id: opaque.clientId, scope: opaque.scope }
  try {
    const published = createLocalJWKSet({ keys: keys.map(({ kty, n, e, crv, x, y, kid, alg, use }) => ({ kty, n, e, crv, x, y, kid, alg, use })) })
    return (await jwtVerify(token, published, { issuer })).payload
  } catch (failure) {
    throw new errors.InvalidGrant(`the subject token is not good: ${failure.code}`)
  }
}

async function read(request) {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks).toString('utf8')
}

/** What a client may ask for is the resource's matter, so what it registers with does not bind it. */
async function registration(request) {
  const { scope, ...metadata } = JSON.parse(await read(request))
  request.body = metadata
}

const server = createServer(async (request, response) => {
  try {
    if (request.url.startsWith('/interaction/')) return await interact(request, response)
    if (request.method === 'POST' && request.url === '/reg') await registration(request)
    await answer(request, response)
  } catch (failure) {
    console.error(failure)
    if (!response.headersSent) response.writeHead(500)
    response.end()
  }
})

const listen = () => new Promise((resolve, reject) => {
  server.once('error', reject)
  server.listen(Number(values.port), '127.0.0.1', resolve)
})

const controls = {
  '/rotate': () => (rotate(), { keys: keys.map(({ kid }) => kid) }),
  '/retire': () => {
    keys = keys.filter(({ kid }) => kid.endsWith(`-${generation}`))
    start()
    return { keys: keys.map(({ kid }) => kid) }
  },
  '/down': () => new Promise((resolve) => {
    server.close(() => resolve({}))
    server.closeAllConnections()
  }),
  '/up': async () => (await listen(), {}),
  '/journal': () => journal,
  '/mint': async ({ claims: given, header }) => {
    const { kid, ...key } = keys.find(({ alg }) => alg === (header?.alg ?? 'RS256'))
    const now = Math.floor(Date.now() / 1000)
    const all = Object.entries({ iss: issuer, iat: now, exp: now + LIFE, ...given }).filter(([, value]) => value !== null)
    return {
      token: await new SignJWT(Object.fromEntries(all))
        .setProtectedHeader({ alg: 'RS256', typ: 'at+jwt', kid, ...header })
        .sign(createPrivateKey({ key, format: 'jwk' })),
    }
  },
}

rotate()
await listen()
createServer(async (request, response) => {
  try {
    const body = request.method === 'POST' ? await read(request) : ''
    const done = await controls[request.url](body === '' ? {} : JSON.parse(body))
    response.setHeader('content-type', 'application/json').end(JSON.stringify(done))
  } catch (failure) {
    response.writeHead(500).end(String(failure))
  }
}).listen(Number(values.control), '127.0.0.1')
