// A client of 2026-07-28 by hand, for what no SDK sends: messages that have to be refused, streams that are left, ids and
// tokens that collide, and a task that is seen from both eras.

import { bare, begun, check, expect, expectSame, options, tools } from './checks.mjs'
import { mirrors, post } from './raw_dispatch.mjs'
import { SseReader } from '../wire/sse_reader.mjs'

const REVISION = '2026-07-28'
const EXTENSION = 'io.modelcontextprotocol/tasks'
const META = 'io.modelcontextprotocol/'
const NOBODY = '00000000-0000-4000-8000-000000000000'
const [INVALID_PARAMS, METHOD_NOT_FOUND, HEADER_MISMATCH, MISSING_CAPABILITY] = [-32602, -32601, -32020, -32021]
const declaring = { elicitation: {}, sampling: {}, extensions: { [EXTENSION]: {} } }
const headers = options.key === undefined ? {} : { authorization: `Bearer ${options.key}` }
let ids = 0

const envelope = (capabilities) => ({
  [`${META}protocolVersion`]: REVISION, [`${META}clientCapabilities`]: capabilities, [`${META}clientInfo`]: { name: 'interop-probe', version: '1.0.0' },
})

/** Sends a request; gives its status, its answer and what came before that. */
function send(method, params = {}, { capabilities = declaring, meta = {}, id = ++ids, ...more } = {}) {
  const request = { jsonrpc: '2.0', id, method, params: { ...params, _meta: { ...envelope(capabilities), ...meta } } }
  return post(more.url ?? options.url, request, { headers: { ...headers, ...more.headers }, signal: more.signal })
}

const call = ({ name, arguments: given }, more) => send('tools/call', { name, arguments: given, ...more?.params }, more)
const straight = async ({ name, arguments: given }) => {
  const session = await openLegacy(options.direct) // every server has one there
  const { result } = await session.request('tools/call', { name, arguments: given })
  await session.close()
  return bare(result)
}
const get = (taskId, more) => send('tasks/get', { taskId }, more)

async function start(tool, more) {
  const { answer } = await call(tool, more)
  expect(answer.result?.resultType === 'task', `answered with ${JSON.stringify(answer).slice(0, 200)}`)
  return answer.result.taskId
}

async function ended(taskId) {
  for (;;) {
    const { answer } = await get(taskId)
    if (['completed', 'failed', 'cancelled'].includes(answer.result?.status)) return answer.result
    expect(answer.result !== undefined, `tasks/get: ${JSON.stringify(answer.error)}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

function refused({ status, answer }, code, httpStatus) {
  expect(answer?.error?.code === code, `expected error ${code}, got ${JSON.stringify(answer)?.slice(0, 200)}`)
  if (httpStatus !== undefined) expect(status === httpStatus, `expected HTTP ${httpStatus}, got ${status}`)
  return answer.error
}

const ON_TASKS = { 'tasks/get': {}, 'tasks/update': { inputResponses: {} }, 'tasks/cancel': {} }
const slow = tools.steps

await check('server/discover offers the extension, and no tasks of the core', async () => {
  const { answer: { result } } = await send('server/discover')
  expectSame(result.capabilities.extensions?.[EXTENSION], {}, 'extension')
  expect(result.capabilities.tasks === undefined, 'tasks of the core')
  expect(result.supportedVersions.includes(REVISION), `versions ${result.supportedVersions}`)
})

await check('tasks/* without the extension: missing capability, whatever the id', async () => {
  const taskId = await start(slow)
  for (const [method, more] of Object.entries(ON_TASKS)) {
    for (const id of [taskId, NOBODY]) {
      const { data } = refused(await send(method, { taskId: id, ...more }, { capabilities: {} }), MISSING_CAPABILITY, 400)
      expectSame(data.requiredCapabilities, { extensions: { [EXTENSION]: {} } }, `data of ${method}`)
    }
  }
  expect((await ended(taskId)).status === 'completed', 'the task was touched')
})

await check('no handle without the extension: nothing declared, nor the capability of the core', async () => {
  for (const capabilities of [{}, { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } }, { extensions: {} }]) {
    const { answer } = await call(slow, { capabilities })
    expect(answer.result?.resultType === 'complete', `answered with ${JSON.stringify(answer).slice(0, 200)}`)
  }
})

await check('a parameter of the core makes no task, and prevents none', async () => {
  let type
  // A machine that is busy may make it slow.
  for (let tries = 0; tries < 5 && type !== 'complete'; tries++) {
    type = (await call(tools.same[0], { params: { task: { ttl: 60_000 } } })).answer.result?.resultType
  }
  expect(type === 'complete', `answered with ${type}`)
  await ended(await start(slow, { params: { task: {} } }))
})

await check('Mcp-Name is checked on get, update and cancel, and the task goes on', async () => {
  const taskId = await start(slow)
  for (const [method, more] of Object.entries(ON_TASKS)) {
    refused(await send(method, { taskId, ...more }, { headers: { 'mcp-name': NOBODY } }), HEADER_MISMATCH, 400)
  }
  expect((await ended(taskId)).status === 'completed', 'the task was touched')
})

await check('Mcp-Method and the version are checked', async () => {
  refused(await send('tools/list', {}, { headers: { 'mcp-method': 'prompts/list' } }), HEADER_MISMATCH, 400)
  refused(await send('tools/list', {}, { headers: { 'mcp-protocol-version': '2025-11-25' } }), HEADER_MISMATCH, 400)
})

await check('removed methods are unknown', async () => {
  for (const method of ['tasks/list', 'tasks/result', 'ping', 'initialize', 'logging/setLevel', 'resources/subscribe']) {
    refused(await send(method, { taskId: NOBODY, uri: 'test://x', level: 'info' }), METHOD_NOT_FOUND, 404)
  }
})

await check('GET and DELETE are not there for the stateless protocol', async () => {
  for (const method of ['GET', 'DELETE']) {
    const { status } = await fetch(options.url, { method, headers: { ...headers, 'mcp-protocol-version': REVISION, accept: 'text/event-stream' } })
    expect(status === 405, `${method}: HTTP ${status}`)
  }
})

await check('an unknown task is refused, with the same words for all', async () => {
  const said = []
  for (const [method, more] of Object.entries(ON_TASKS)) {
    for (const taskId of [NOBODY, 'no-uuid']) said.push(refused(await send(method, { taskId, ...more }), INVALID_PARAMS, 200).message.replace(taskId, ''))
  }
  expect(new Set(said).size === 1, `different words: ${[...new Set(said)]}`)
})

await check('a cancelled task stays cancelled, and cancelling it again is acknowledged', async () => {
  const taskId = await start(slow)
  for (let times = 0; times < 2; times++) {
    const { answer } = await send('tasks/cancel', { taskId })
    expectSame(bare(answer.result), {}, 'acknowledgement')
  }
  await new Promise((resolve) => setTimeout(resolve, 1500)) // longer than the call would have taken
  expect((await get(taskId)).answer.result.status === 'cancelled', 'changed')
})

await check('a cancelled call ends at the server', async () => {
  const taskId = await start(tools.cancel)
  await begun()
  await send('tasks/cancel', { taskId })
})

await check("a tool's error comes as it is", async () => {
  const { answer: { result } } = await call(tools.fail)
  const failed = result?.resultType === 'task' ? (await ended(result.taskId)).result : result
  expect(failed?.isError === true, JSON.stringify(result).slice(0, 200))
  expectSame(bare(failed), await straight(tools.fail), 'result')
})

await check('a subscriber to a task is told of its end, with its result', async () => {
  const taskId = await start(slow)
  const controller = new AbortController()
  const told = await listen({ taskIds: [taskId, NOBODY] }, controller, (message) => message.params?.status === 'completed')
  expectSame(told[0].params.notifications.taskIds, [taskId], 'acknowledged ids')
  const { answer } = await get(taskId)
  const { _meta: _, ...params } = told.at(-1).params
  const { _meta: __, resultType, ...task } = answer.result
  expectSame(params, task, 'what was told')
})

await check('listening to tasks without the extension: missing capability', async () => {
  refused(await send('subscriptions/listen', { notifications: { taskIds: [NOBODY] } }, { capabilities: {} }), MISSING_CAPABILITY, 400)
})

if (tools.ask) {
  const without = { capabilities: { elicitation: {} } }
  const asked = async () => {
    const { answer } = await call(tools.ask, without)
    expect(answer.result?.resultType === 'input_required', `answered with ${JSON.stringify(answer).slice(0, 200)}`)
    return answer.result
  }
  const answers = ({ inputRequests }) => Object.fromEntries(Object.keys(inputRequests).map((key) => [key, { action: 'accept', content: { name: 'Ada' } }]))

  await check('a question in rounds is answered', async () => {
    const round = await asked()
    const { answer } = await call(tools.ask, { ...without, params: { inputResponses: answers(round), ...(round.requestState && { requestState: round.requestState }) } })
    expect(JSON.stringify(answer.result?.content)?.includes('Ada'), `greeted with ${JSON.stringify(answer).slice(0, 200)}`)
  })

  await check('a state that was tampered with is refused', async () => {
    const round = await asked()
    if (round.requestState === undefined) return // the server keeps none, and nothing is left to tamper with
    for (const requestState of [`${round.requestState}x`, 'nonsense', '']) {
      refused(await call(tools.ask, { ...without, params: { inputResponses: answers(round), requestState } }), INVALID_PARAMS)
    }
  })

  await check('without the capability nothing is asked', async () => {
    const { answer } = await call(tools.ask, { capabilities: {} })
    // A server that is told so may do without an answer; a server that asks all the same is refused.
    expect(answer.result?.resultType !== 'input_required', 'it was asked')
    if (answer.error?.code === MISSING_CAPABILITY) expect(answer.error.data.requiredCapabilities.elicitation !== undefined, 'not named')
  })
}

await check('a task that outlives its stream: leaving before the handle ends the call, after it does not', async () => {
  const controller = new AbortController()
  const left = call({ ...tools.cancel, arguments: { ...tools.cancel.arguments, label: `${options.label}-left` } }, { signal: controller.signal, capabilities: {} })
  setTimeout(() => controller.abort(), 600)
  await left.then(() => expect(false, 'there was an answer'), () => {})
  await ended(await start(slow))
})

await check('both eras see one task: made here, read and answered there', async () => {
  const session = await openLegacy()
  const taskId = await start(slow)
  const there = await session.request('tasks/get', { taskId })
  expect(there.result?.taskId === taskId && Number.isInteger(there.result.ttl), JSON.stringify(there))
  const result = (await session.request('tasks/result', { taskId })).result
  expectSame(bare(result), await straight(slow), 'result in the other era')
  expectSame(bare((await ended(taskId)).result), await straight(slow), 'result in this era')
  await session.close()
})

await check('both eras see one task: made there, read here, where isError completes it', async () => {
  const session = await openLegacy()
  const { result } = await session.request('tools/call', { name: tools.fail.name, arguments: tools.fail.arguments, task: {} })
  const here = await ended(result.task.taskId)
  expect(here.status === 'completed' && here.result.isError === true, `here it is ${here.status}`)
  expect((await session.request('tasks/get', { taskId: result.task.taskId })).result.status === 'failed', 'there it is not failed')
  await session.close()
})

await check('hundreds of calls at once, of both eras, with the same ids and tokens: every answer to its owner', async () => {
  const sessions = await Promise.all(Array.from({ length: 4 }, () => openLegacy()))
  const tool = tools.same[0]
  const [argument] = Object.keys(tool.arguments)
  const mine = async (who, number, ask) => {
    const value = `${who} ${number}`
    const reply = await ask(number, { name: tool.name, arguments: { ...tool.arguments, [argument]: value } })
    expect(reply.id === number, `id ${JSON.stringify(reply.id)} for ${number}`)
    expect(JSON.stringify(reply.result).includes(value), `${JSON.stringify(reply).slice(0, 200)} for ${value}`)
  }
  const meta = (number) => ({ progressToken: number })
  const modern = (id, params) => send('tools/call', params, { id, meta: meta(id), capabilities: {} }).then(({ answer }) => answer)
  const legacy = (session) => (id, params) => session.request('tools/call', { ...params, _meta: meta(id) }, id)
  const askers = [...Array.from({ length: 4 }, (_, at) => [`modern ${at}`, modern]), ...sessions.map((session, at) => [`legacy ${at}`, legacy(session)])]
  for (let wave = 0; wave < 5; wave++) {
    await Promise.all(askers.flatMap(([who, ask]) => Array.from({ length: 10 }, (_, number) => mine(who, 1000 + 10 * wave + number, ask))))
  }
  await Promise.all(sessions.map((session) => session.close()))
})

if (options['other-key'] !== undefined) {
  await check('another tenant sees nothing', async () => {
    const taskId = await start(slow)
    const other = { headers: { authorization: `Bearer ${options['other-key']}` } }
    for (const [method, more] of Object.entries(ON_TASKS)) {
      const [foreign, missing] = [await send(method, { taskId, ...more }, other), await send(method, { taskId: NOBODY, ...more }, other)]
      expectSame(refused(foreign, INVALID_PARAMS).message.replace(taskId, NOBODY), refused(missing, INVALID_PARAMS).message, 'words')
    }
    expect((await ended(taskId)).status === 'completed', 'lost by its owner')
  })
}

/** Opens a subscription and reads until a message is the one waited for. */
async function listen(notifications, controller, last) {
  const request = { jsonrpc: '2.0', id: `listen-${++ids}`, method: 'subscriptions/listen', params: { notifications, _meta: envelope(declaring) } }
  const response = await fetch(options.url, {
    method: 'POST', signal: controller.signal, body: JSON.stringify(request),
    headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...mirrors(request), ...headers },
  })
  const messages = []
  const reader = new SseReader(({ data }) => { if (data !== '') messages.push(JSON.parse(data)) })
  for await (const chunk of response.body) {
    reader.push(Buffer.from(chunk))
    if (messages.some(last)) break
  }
  controller.abort()
  return messages
}

/** A session of 2025-11-25, for what both eras have to see alike. */
async function openLegacy(url = options.url) {
  let session
  const exchange = async (message) => {
    const response = await fetch(url, {
      method: 'POST', body: JSON.stringify(message),
      headers: {
        'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': '2025-11-25', ...headers,
        ...(session && { 'mcp-session-id': session }),
      },
    })
    session ??= response.headers.get('mcp-session-id')
    const body = await response.text()
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return body === '' ? undefined : JSON.parse(body)
    const data = body.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim()).filter((line) => line !== '')
    return data.map((line) => JSON.parse(line)).find((reply) => reply.id === message.id && reply.method === undefined)
  }
  let last = 0
  const request = (method, params, id = ++last) => exchange({ jsonrpc: '2.0', id, method, params })
  await request('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'interop-probe-legacy', version: '1.0.0' } })
  await exchange({ jsonrpc: '2.0', method: 'notifications/initialized' })
  return { request, close: () => fetch(url, { method: 'DELETE', headers: { ...headers, 'mcp-session-id': session, 'mcp-protocol-version': '2025-11-25' } }) }
}

process.exit()
