// A caller that begins with nothing and ends with a task, as the SDKs do it by themselves: the refusal, the metadata of the
// route and of the authorization server, registration, PKCE, a token for this route alone. In 2025-11-25 the TypeScript SDK
// 1.x does it, in 2026-07-28 the SDK 2.x with ext-tasks.
//
// With --rules the route has those of stage/authorization.py, and other people are there besides.

import { Client as LegacyClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport as LegacyTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { UnauthorizedError as LegacyUnauthorized } from '@modelcontextprotocol/sdk/client/auth.js'
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js'
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client'
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client'
import { bare, check, expect, expectSame, namesOf, options, tools, withoutRelatedTask } from './checks.mjs'
import { Person } from './person.mjs'
import { dispatcher } from './raw_dispatch.mjs'

const INVALID_PARAMS = -32602
const EXTENSION = 'io.modelcontextprotocol/tasks'
const clientInfo = { name: 'interop-authorized', version: '1.0.0' }
const modern = options.era === 'modern'
const [STEPPED, ADMINS] = [tools.count, { name: 'large', arguments: { kilobytes: 1 } }]

/** What both SDKs have under different names. */
const eras = {
  legacy: {
    open: (person) => ({
      client: new LegacyClient(clientInfo, { capabilities: {} }),
      transport: new LegacyTransport(new URL(options.url), { authProvider: person }),
    }),
    finish: (transport, callback) => transport.finishAuth(callback.get('code')),
    isUnauthorized: (failure) => failure instanceof LegacyUnauthorized,
    tasks: ({ client }) => ({
      async start(call) {
        const { taskId } = await new Promise((resolve, reject) => {
          const run = async () => {
            for await (const { type, task, error } of client.experimental.tasks.callToolStream(call, CallToolResultSchema, { task: {} })) {
              if (type === 'taskCreated') resolve(task)
              if (type === 'error') reject(error)
            }
          }
          run().catch(reject)
        })
        return taskId
      },
      get: (taskId) => client.experimental.tasks.getTask(taskId),
      cancel: (taskId) => client.experimental.tasks.cancelTask(taskId),
      list: async () => (await client.experimental.tasks.listTasks()).tasks.map(({ taskId }) => taskId),
      result: async (taskId) => withoutRelatedTask(await client.experimental.tasks.getTaskResult(taskId, CallToolResultSchema)),
    }),
  },
  modern: {
    open: (person) => ({
      client: new Client(clientInfo, { capabilities: { extensions: { [EXTENSION]: {} } }, versionNegotiation: { mode: 'auto' } }),
      transport: new StreamableHTTPClientTransport(new URL(options.url), { authProvider: person }),
    }),
    finish: (transport, callback) => transport.finishAuth(callback),
    isUnauthorized: (failure) => failure instanceof UnauthorizedError,
    tasks({ client }, person) {
      const session = createTaskSessionFromClient(client, {
        endpointId: 'interop',
        onInputRequest: () => { throw new Error('asked') },
        rawDispatch: (request, more) => dispatcher(options.url, { authorization: `Bearer ${person.tokens().access_token}` })(request, more),
        v2RequestFraming: { protocolVersion: '2026-07-28', clientInfo, clientCapabilities: { extensions: { [EXTENSION]: {} } } },
      })
      const started = new Map()
      return {
        async start(call) {
          const execution = await session.callTool(call.name, call.arguments)
          expect(execution.kind === 'task', `answered ${execution.kind}`)
          started.set(execution.handle.taskId, execution)
          return execution.handle.taskId
        },
        get: (taskId) => session.task(taskId).snapshot(),
        cancel: (taskId) => session.task(taskId).cancel(),
        async result(taskId) {
          const { outcome } = await started.get(taskId).settle()
          expect(outcome.status === 'completed', `ended as ${outcome.status}`)
          return bare(outcome.result)
        },
      }
    },
  },
}
const era = eras[options.era]

/** Connects; where the SDK sends the person to the browser, with what that brought back. */
async function connect(person) {
  let { client, transport } = era.open(person)
  try {
    await client.connect(transport)
  } catch (failure) {
    if (!era.isUnauthorized(failure)) throw failure
    await era.finish(transport, person.callback)
    const again = era.open(person)
    ;({ client, transport } = again)
    await client.connect(transport)
  }
  const leave = async () => {
    await transport.terminateSession?.()
    await client.close()
  }
  return { client, transport, leave, ...era.tasks({ client }, person) }
}

async function refused(request) {
  const { code } = await request.then(() => ({}), (failure) => failure.response ?? failure)
  expect(code === INVALID_PARAMS, `expected error ${INVALID_PARAMS}, got ${code}`)
}

const straight = new LegacyClient(clientInfo, { capabilities: {} })
await straight.connect(new LegacyTransport(new URL(options.direct)))

await check('without a token: 401, which names the metadata of the route', async () => {
  const response = await fetch(options.url, { method: 'POST', headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' }, body: '{"jsonrpc":"2.0","id":1,"method":"ping"}' })
  const challenge = response.headers.get('www-authenticate') ?? ''
  expect(response.status === 401, `answered ${response.status}`)
  expect(/^Bearer /.test(challenge) && !challenge.includes('error='), `challenge: ${challenge}`)
  const [, where] = /resource_metadata="([^"]+)"/.exec(challenge) ?? []
  expect(where !== undefined, `challenge: ${challenge}`)
  const metadata = await (await fetch(where)).json()
  expect(metadata.resource === options.url, `resource: ${metadata.resource}`)
  expect(metadata.authorization_servers.length === 1, `authorization servers: ${metadata.authorization_servers}`)
  expect(/scope="mcp:read"/.test(challenge) && metadata.scopes_supported.includes('mcp:read'), `challenge: ${challenge}`)
})

const alice = new Person('alice')
let there
await check('from the refusal to tokens, with the browser once', async () => {
  there = await connect(alice)
  expectSame(alice.log, ['registered', 'browser', 'tokens'], 'what happened')
  expect(!modern || there.client.getProtocolEra() === 'modern', 'the era')
})
expect(there !== undefined, 'nothing can be checked without a connection')

await check('a slow call becomes a task, with the result of the direct call', async () => {
  const taskId = await there.start(tools.steps)
  expectSame(await there.result(taskId), bare(await straight.callTool(tools.steps)), 'result')
})

await check('a token that no longer counts is refreshed, without the browser', async () => {
  alice.log.length = 0
  alice.spoil()
  expectSame(namesOf(await there.client.listTools()).includes('echo'), true, 'listed')
  expectSame(alice.log, ['tokens'], 'what happened')
  const taskId = await there.start(tools.steps)
  await there.result(taskId)
})

if (options.rules) {
  await check('a call that needs more scopes: the browser again, and then it runs, once', async () => {
    const person = new Person('alice', { renews: false })
    let stepping = await connect(person)
    expectSame(person.tokens().scope, 'mcp:read', 'scope at first')
    person.log.length = 0
    const failure = await stepping.client.callTool(STEPPED).then(() => new Error('it was let through'), (failure) => failure)
    expect(era.isUnauthorized(failure), `failed with ${failure}`)
    await era.finish(stepping.transport, person.callback)
    expectSame(person.log, ['browser', 'tokens'], 'what happened')
    const scopes = person.tokens().scope.split(' ')
    expect(scopes.includes('mcp:write') && scopes.includes('mcp:read'), `scope afterwards: ${scopes}`)
    const { content: [{ text }] } = await stepping.client.callTool(STEPPED)
    expect(text === '1', `ran ${text} times`)
    await stepping.leave()
  })

  const bob = await connect(new Person('bob')) // of alice's tenant, with another role
  const carol = await connect(new Person('carol')) // with alice's role, of another tenant

  await check('a tool for admins: the others neither see nor call it', async () => {
    expect(namesOf(await there.client.listTools()).includes(ADMINS.name), 'not listed for the admin')
    expect(!namesOf(await bob.client.listTools()).includes(ADMINS.name), 'listed for another')
    expectSame(bare(await there.client.callTool(ADMINS)), bare(await straight.callTool(ADMINS)), 'result')
    await refused(bob.client.callTool({ ...ADMINS, arguments: { ...ADMINS.arguments, label: 'refused' } }))
  })

  await check('tasks are seen by nobody else, of this tenant or another', async () => {
    const taskId = await there.start(tools.steps)
    for (const stranger of [bob, carol]) {
      await refused(stranger.get(taskId))
      await refused(stranger.cancel(taskId))
      if (!modern) expect(!(await stranger.list()).includes(taskId), 'listed')
    }
    if (!modern) expect((await there.list()).includes(taskId), 'not listed for its owner')
    await there.result(taskId)
  })
  await bob.leave()
  await carol.leave()
}

await there.leave()
await straight.close()
process.exit() // a check that failed may have left a connection open
