// The TypeScript SDK 2.x with ext-tasks, in either era: it takes a task where the server makes one.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client'
import { bare, begun, check, expect, expectSame, namesOf, options, tools } from './checks.mjs'
import { dispatcher } from './raw_dispatch.mjs'

const INVALID_PARAMS = -32602
const TRIES = 5
const NOBODY = '00000000-0000-4000-8000-000000000000'
const EXTENSION = 'io.modelcontextprotocol/tasks'
const modern = options.era === 'modern'
const clientInfo = { name: 'interop-ext-tasks', version: '1.0.0' }
const capabilities = { elicitation: {}, sampling: {}, extensions: { [EXTENSION]: {} } }
// In 2025-11-25 it is the client that asks for a task.
const asTask = modern ? {} : { task: { preference: 'prefer' } }

const answers = {
  elicitation: () => ({ action: 'accept', content: { name: 'Ada' } }),
  sampling: () => ({ model: 'none', role: 'assistant', content: { type: 'text', text: 'short' } }),
}

/** A connected client and its task session, which answers every question and notes what it was asked. */
async function connect(url, key, mode) {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode } })
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
  await client.connect(transport)
  const questions = []
  const raw = client.getProtocolEra() === 'modern' && {
    rawDispatch: dispatcher(url, headers),
    v2RequestFraming: { protocolVersion: '2026-07-28', clientInfo, clientCapabilities: capabilities },
  }
  const session = createTaskSessionFromClient(client, {
    endpointId: 'interop',
    onInputRequest: (request, context) => {
      questions.push({ request, context })
      return answers[request.kind](request)
    },
    ...raw,
  })
  return { client, session, questions, leave: async () => { await session.close(); await client.close() } }
}

/** A client without tasks, for what the same call gives straight from the server. */
async function connectPlain(url) {
  const client = new Client(clientInfo, { capabilities: { elicitation: {}, sampling: {} }, versionNegotiation: { mode: modern ? 'auto' : 'legacy' } })
  client.setRequestHandler('elicitation/create', answers.elicitation)
  client.setRequestHandler('sampling/createMessage', answers.sampling)
  await client.connect(new StreamableHTTPClientTransport(new URL(url)))
  return client
}

const there = await connect(options.url, options.key, modern ? 'auto' : 'legacy')
const direct = await connectPlain(options.direct)

const outcome = (request) => request.then((result) => ({ result: bare(result) }), ({ code, message, data, response }) => ({ error: response ?? { code, message, data } }))

/** Starts a call that has to become a task. */
async function start({ session }, call) {
  const execution = await session.callTool(call.name, call.arguments, asTask)
  expect(execution.kind === 'task', `answered ${execution.kind}`)
  return execution
}

/** What the SDK knows of a result: it drops the rest, which ext-tasks does not. */
function known(result) {
  const members = ['type', 'text', 'data', 'mimeType', 'resource', 'uri', 'name', 'title', 'description', 'size', 'icons', 'annotations', '_meta']
  const block = (given) => Object.fromEntries(Object.entries(given).filter(([member]) => members.includes(member)))
  return { ...bare(result), content: result.content.map(block) }
}

/** Settles a call and gives its result, whatever way it came. */
async function settled(execution) {
  const { outcome: end, lastTask } = await execution.settle()
  if (end.status !== 'completed') throw end.error ?? new Error(`the task is ${end.status}`)
  return { result: known(end.result), lastTask }
}

async function sameBothWays(call, questionsExpected = 0) {
  there.questions.length = 0
  const { result } = await settled(await there.session.callTool(call.name, call.arguments, asTask))
  expect(there.questions.length === questionsExpected, `asked ${there.questions.length} times`)
  expectSame(result, known(await direct.callTool(call)), 'result')
}

async function refused(request) {
  const { error } = await outcome(request)
  expect(error?.code === INVALID_PARAMS, `expected error ${INVALID_PARAMS}, got ${JSON.stringify(error) ?? 'a result'}`)
}

await check(`the era is ${options.era}, with tasks`, () => {
  expect(there.client.getProtocolEra() === options.era, `era ${there.client.getProtocolEra()}`)
  expect(there.session.capabilities.execution, 'no task capability')
})

await check('list: the tools of the server', async () => {
  expectSame(namesOf(await there.client.listTools()), namesOf(await direct.listTools()), 'listed tools')
})

await check('a quick call is answered plainly', async () => {
  let execution
  // A machine that is busy may make it slow.
  for (let tries = 0; tries < TRIES && execution?.kind !== 'immediate'; tries++) {
    execution = await there.session.callTool(tools.same[0].name, tools.same[0].arguments)
  }
  expect(execution.kind === 'immediate', `answered with a ${execution.kind}`)
  expectSame((await settled(execution)).result, known(await direct.callTool(tools.same[0])), 'result')
})

await check('a slow call becomes a task, with the result of the direct call', async () => {
  const { result, lastTask } = await settled(await start(there, tools.steps))
  expect(lastTask?.status === 'completed', `ended as ${lastTask?.status}`)
  expectSame(result, known(await direct.callTool(tools.steps)), 'result')
})

for (const call of tools.same) await check(`the result equals the direct one: ${call.name}`, () => sameBothWays(call))
if (tools.ask) await check('a question is answered', () => sameBothWays(tools.ask, 1))
if (tools.ask_twice) await check('two questions, one after the other', () => sameBothWays(tools.ask_twice, 2))
if (tools.sample) await check('a sampling request is answered', () => sameBothWays(tools.sample, 1))

await check('a cancelled task stays cancelled', async () => {
  const execution = await start(there, tools.cancel)
  const { taskId } = execution.handle
  await begun()
  await execution.cancel()
  const { outcome: end } = await execution.settle()
  expect(end.status === 'cancelled', `ended as ${end.status}`)
  expect((await there.session.task(taskId).snapshot()).status === 'cancelled', 'not cancelled when read again')
})

await check(modern ? 'isError: the task completes with it' : 'isError: the task fails', async () => {
  const execution = await there.session.callTool(tools.fail.name, tools.fail.arguments, asTask)
  const { outcome: end } = await execution.settle()
  if (modern || execution.kind === 'immediate') {
    expect(end.status === 'completed' && end.result.isError === true, `ended as ${JSON.stringify(end)}`)
    expectSame(known(end.result), known(await direct.callTool(tools.fail)), 'result')
  } else {
    expect(end.status === 'failed', `ended as ${end.status}`)
    expect(end.error.message.includes(tools.fail.says), `says ${end.error.message}`)
  }
})

await check('an unknown tool gives what the server gives', async () => {
  const through = await outcome(there.session.callTool(tools.unknown.name, tools.unknown.arguments).then(async (execution) => {
    const { outcome: end } = await execution.settle()
    if (end.status !== 'completed') throw end.error
    return end.result
  }))
  const straight = await outcome(direct.callTool(tools.unknown))
  expectSame([through.error?.code, through.result], [straight.error?.code, straight.result], 'outcome')
})

if (tools.count) {
  await check('a tool runs once', async () => {
    const { result } = await settled(await there.session.callTool(tools.count.name, tools.count.arguments, asTask))
    expect(result.content[0].text === '1', `counted ${result.content[0].text}`)
    expect((await direct.callTool(tools.count)).content[0].text === '2', 'ran more than once')
  })
}

await check('twenty tasks at once', async () => {
  const all = await Promise.all(Array.from({ length: 20 }, async () => {
    const execution = await start(there, tools.steps)
    return [execution.handle.taskId, (await settled(execution)).result]
  }))
  expect(new Set(all.map(([taskId]) => taskId)).size === 20, 'task ids repeat')
  const straight = known(await direct.callTool(tools.steps))
  for (const [, result] of all) expectSame(result, straight, 'result')
})

await check('an unknown task is refused', async () => {
  const nobody = there.session.task(NOBODY)
  await refused(nobody.snapshot())
  await refused(nobody.cancel())
  if (modern) await refused(nobody.update({}))
})

await check('a task outlives the client that made it', async () => {
  const first = await connect(options.url, options.key, modern ? 'auto' : 'legacy')
  const execution = await start(first, tools.steps)
  let reference
  await execution.handoff((given) => { reference = given })
  await first.client.close() // closing the session would cancel what it started
  const { result } = await settled(await there.session.resumeTask(reference))
  expectSame(result, known(await direct.callTool(tools.steps)), 'result')
})

if (options['other-key'] !== undefined) {
  await check('another tenant sees nothing', async () => {
    const execution = await start(there, tools.steps)
    const stranger = await connect(options.url, options['other-key'], modern ? 'auto' : 'legacy')
    const foreign = stranger.session.task(execution.handle.taskId)
    await refused(foreign.snapshot())
    await refused(foreign.cancel())
    await stranger.leave()
    await settled(execution)
  })
}

if (!modern && tools.ask) {
  await check('a question names its task', async () => {
    there.questions.length = 0
    const execution = await start(there, tools.ask)
    await settled(execution)
    expect(there.questions[0]?.context.taskId === execution.handle.taskId, 'it does not')
  })
}

await there.leave()
await direct.close()
process.exit() // a check that failed may have left a connection open
