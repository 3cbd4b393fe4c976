// The TypeScript SDK 1.x as a task client: client.experimental.tasks.callToolStream and its companions.

import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import {
  CallToolResultSchema, CreateMessageRequestSchema, CreateTaskResultSchema, ElicitRequestSchema, ListRootsRequestSchema,
} from '@modelcontextprotocol/sdk/types.js'
import { arrived, begun, check, expect, expectSame, options, policy, relatedTask, sure, tools, withoutRelatedTask } from './checks.mjs'

const INVALID_REQUEST = -32600
const METHOD_NOT_FOUND = -32601
const INVALID_PARAMS = -32602

/** A connected client that answers every question, and notes what it was asked. */
async function connect(url, key) {
  const client = new Client(
    { name: 'interop-ts-sdk', version: '1.0.0' },
    { capabilities: { elicitation: {}, sampling: {}, roots: {} } })
  const questions = []
  client.setRequestHandler(ElicitRequestSchema, (request) => {
    questions.push(request)
    return { action: 'accept', content: { name: 'Ada' } }
  })
  client.setRequestHandler(CreateMessageRequestSchema, (request) => {
    questions.push(request)
    return { model: 'none', role: 'assistant', content: { type: 'text', text: 'short' } }
  })
  client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///interop', name: 'interop' }] }))
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
  await client.connect(transport)
  const leave = async () => {
    await transport.terminateSession()
    await client.close()
  }
  return { client, tasks: client.experimental.tasks, questions, leave }
}

/** Calls a tool through a task and collects what the stream yields. */
async function viaTask({ tasks }, call, extra = {}) {
  const seen = { statuses: [] }
  for await (const message of tasks.callToolStream(call, CallToolResultSchema, { task: {}, ...extra })) {
    if (message.type === 'taskCreated') {
      seen.task = message.task
      extra.oncreated?.(message.task)
    }
    if (message.type === 'taskStatus') {
      seen.statuses.push(message.task.status)
      seen.last = message.task
    }
    if (message.type === 'result') seen.result = message.result
    if (message.type === 'error') seen.error = message.error
  }
  if (!seen.task) throw seen.error ?? new Error('answered without a task')
  return seen
}

/** Starts a task and leaves its stream when `signal` says so, or at once where none is given. */
function start(connection, call, signal) {
  const controller = new AbortController()
  return new Promise((resolve, reject) => {
    const oncreated = (task) => {
      resolve(task.taskId)
      if (!signal) setImmediate(() => controller.abort())
    }
    viaTask(connection, call, { signal: signal ?? controller.signal, oncreated }).catch(reject)
  })
}

/** Either the result or the error of a request, so that both can be compared. */
const outcome = (request) => request.then(
  (result) => ({ result: withoutRelatedTask(result) }),
  ({ code, message, data }) => ({ error: { code, message, data } }))

async function refused(request, code) {
  const { error } = await outcome(request)
  expect(error?.code === code, `expected error ${code}, got ${JSON.stringify(error) ?? 'a result'}`)
  return error
}

const there = await connect(options.url, options.key)
const direct = await connect(options.direct)

/** Calls a tool through a task and straight; both must give the same. */
async function sameBothWays(call, questionsExpected = 0) {
  there.questions.length = 0
  const seen = await viaTask(there, call)
  expect(seen.error === undefined, `the task ended with ${seen.error?.message}`)
  expect(seen.task.status === 'working', `created as ${seen.task.status}`)
  expect(relatedTask(seen.result) === seen.task.taskId || options.native, 'the result does not name its task')
  expect(there.questions.length === questionsExpected, `asked ${there.questions.length} times`)
  for (const question of there.questions) {
    expect(relatedTask(question.params) === seen.task.taskId, 'a question does not name its task')
  }
  const straight = await direct.client.callTool(call)
  expectSame(withoutRelatedTask(seen.result), straight, 'result of the task')
  expectSame(await there.client.callTool(call), straight, 'result of the plain call')
}

async function checkTasks() {
  await check('list: every tool may run as a task', async () => {
    const { tools: listed } = await there.client.listTools()
    expect(there.client.getServerCapabilities()?.tasks?.requests?.tools?.call !== undefined, 'no tasks capability')
    const { tools: expected } = await direct.client.listTools()
    const unsupported = listed.filter((tool) => tool.execution?.taskSupport !== 'optional').map((tool) => tool.name)
    expect(unsupported.length === 0, `not optional: ${unsupported}`)
    // A server of 2026-07-28 says which arguments headers mirror; here it means nothing.
    const plain = (tool) => JSON.parse(JSON.stringify({ ...tool, execution: undefined }, (key, value) => (key === 'x-mcp-header' ? undefined : value)))
    expectSame(listed.map(plain), expected.map(plain), 'listed tools')
  })

  for (const call of tools.same) {
    await check(`task result equals the direct one: ${call.name}`, () => sameBothWays(call))
  }

  await check('progress reaches the caller of a task', async () => {
    const progress = []
    const expected = sure([1, 2, 3, 4].slice(0, tools.progress))
    const seen = await viaTask(there, tools.steps, { onprogress: (step) => progress.push(step.progress) })
    expect(seen.error === undefined, `the task ended with ${seen.error?.message}`)
    await arrived(() => progress.length >= expected.length)
    expectSame(sure(progress), expected, 'progress')
  })

  await check('a cancelled task stays cancelled', async () => {
    const controller = new AbortController()
    const taskId = await start(there, tools.cancel, controller.signal)
    await begun()
    const cancelled = await there.tasks.cancelTask(taskId)
    expect(cancelled.status === 'cancelled', `cancel answered ${cancelled.status}`)
    expect((await there.tasks.getTask(taskId)).status === 'cancelled', 'not cancelled when read again')
    await refused(there.tasks.cancelTask(taskId), INVALID_PARAMS)
    if (!options.native) await refused(there.tasks.getTaskResult(taskId, CallToolResultSchema), INVALID_PARAMS)
    controller.abort()
  })

  await check('leaving the stream does not end the task', async () => {
    const taskId = await start(there, tools.steps)
    const result = await there.tasks.getTaskResult(taskId, CallToolResultSchema)
    expectSame(withoutRelatedTask(result), await direct.client.callTool(tools.steps), 'result')
  })

  if (tools.ask) await check('a question is answered inside the task', () => sameBothWays(tools.ask, 1))
  if (tools.ask_twice) await check('two questions, one after the other', () => sameBothWays(tools.ask_twice, 2))
  if (tools.sample) await check('a sampling request is answered inside the task', () => sameBothWays(tools.sample, 1))

  await check('isError: the task fails and keeps the result', async () => {
    const seen = await viaTask(there, tools.fail)
    expect(seen.last.status === 'failed', `ended as ${seen.last.status}`)
    const result = await there.tasks.getTaskResult(seen.task.taskId, CallToolResultSchema)
    expect(result.isError === true, 'isError is lost')
    expectSame(withoutRelatedTask(result), await direct.client.callTool(tools.fail), 'result')
    if (!options.native) {
      expect(seen.last.statusMessage?.includes(tools.fail.says), `statusMessage: ${seen.last.statusMessage}`)
    }
  })

  if (!options.native) {
    await check('an unknown tool gives what the server gives', async () => {
      const { task } = await viaTask(there, tools.unknown)
      const through = await outcome(there.tasks.getTaskResult(task.taskId, CallToolResultSchema))
      expectSame(through, await outcome(direct.client.callTool(tools.unknown)), 'outcome')
    })
  }

  if (tools.count) {
    await check('a tool runs once', async () => {
      const seen = await viaTask(there, tools.count)
      await there.tasks.getTaskResult(seen.task.taskId, CallToolResultSchema)
      expect(seen.result.content[0].text === '1', `counted ${seen.result.content[0].text}`)
      expect((await direct.client.callTool(tools.count)).content[0].text === '2' || options.native, 'ran more than once')
    })
  }

  await check('twenty tasks at once', async () => {
    const [call] = tools.same
    const all = await Promise.all(Array.from({ length: 20 }, () => viaTask(there, call)))
    expect(new Set(all.map((seen) => seen.task.taskId)).size === 20, 'task ids repeat')
    const straight = await direct.client.callTool(call)
    for (const seen of all) expectSame(withoutRelatedTask(seen.result), straight, 'result')
  })

  await check('an unknown task is refused', async () => {
    const taskId = '00000000-0000-4000-8000-000000000000'
    await refused(there.tasks.getTask(taskId), INVALID_PARAMS)
    await refused(there.tasks.cancelTask(taskId), INVALID_PARAMS)
    await refused(there.tasks.getTaskResult(taskId, CallToolResultSchema), INVALID_PARAMS)
  })

  await check('a task outlives the session that made it', async () => {
    const first = await connect(options.url, options.key)
    const taskId = await start(first, tools.steps)
    await first.leave()
    const result = await there.tasks.getTaskResult(taskId, CallToolResultSchema)
    expectSame(withoutRelatedTask(result), await direct.client.callTool(tools.steps), 'result')
  })

  if (options.key === undefined && !options.native) {
    await check('tasks/list is not offered to unknown callers', async () => {
      expect(there.client.getServerCapabilities().tasks.list === undefined, 'offered')
      await refused(there.tasks.listTasks(), METHOD_NOT_FOUND)
    })
  }

  if (options.key !== undefined) {
    await check('tasks/list shows the caller every task of its own', async () => {
      expect(there.client.getServerCapabilities().tasks.list !== undefined, 'not offered')
      const { task } = await viaTask(there, tools.same[0])
      const listed = []
      let cursor
      do {
        const page = await there.tasks.listTasks(cursor)
        listed.push(...page.tasks)
        cursor = page.nextCursor
      } while (cursor !== undefined)
      const found = listed.find((other) => other.taskId === task.taskId)
      expectSame(found, await there.tasks.getTask(task.taskId), 'listed task')
      expect(new Set(listed.map((other) => other.taskId)).size === listed.length, 'a task is listed twice')
    })
  }

  if (options['other-key'] !== undefined) {
    await check('another tenant sees nothing', async () => {
      const { task } = await viaTask(there, tools.same[0])
      const stranger = await connect(options.url, options['other-key'])
      expectSame((await stranger.tasks.listTasks()).tasks.filter((other) => other.taskId === task.taskId), [], 'listed')
      const nobody = '00000000-0000-4000-8000-000000000000'
      for (const ask of ['getTask', 'cancelTask', 'getTaskResult']) {
        const foreign = await refused(stranger.tasks[ask](task.taskId, CallToolResultSchema), INVALID_PARAMS)
        const missing = await refused(stranger.tasks[ask](nobody, CallToolResultSchema), INVALID_PARAMS)
        expect(foreign.message.replace(task.taskId, nobody) === missing.message, `told apart: ${foreign.message}`)
      }
      await stranger.leave()
      expect((await there.tasks.getTask(task.taskId)).status === 'completed', 'lost by its owner')
    })
    await check('no key, no answer', async () => {
      const { error } = await outcome(connect(options.url, 'not-a-key').then(() => ({})))
      expect(error?.code === 401, `expected HTTP 401, got ${JSON.stringify(error) ?? 'a session'}`)
    })
  }
}

/** What the route's rules for its tools mean to a client. */
async function checkPolicy() {
  await check('list: tools are shown as the route has them', async () => {
    const { tools: listed } = await there.client.listTools()
    const shown = Object.fromEntries(listed.map((tool) => [tool.name, tool.execution?.taskSupport]))
    const { tools: all } = await direct.client.listTools()
    const expected = Object.fromEntries(all.map(({ name }) => [name, policy.support[name] ?? 'optional']))
    delete expected[policy.denied.name]
    expectSame(shown, expected, 'taskSupport')
  })

  await check('required: the client makes a task of its own accord', async () => {
    const seen = await viaTask(there, policy.required, { task: undefined })
    expectSame(withoutRelatedTask(seen.result), await direct.client.callTool(policy.required), 'result')
    await refused(there.client.callTool(policy.required), INVALID_REQUEST) // the client knows, and does not ask
  })

  await check('required: refused without a task', () =>
    refused(there.client.request({ method: 'tools/call', params: policy.refused.required }, CallToolResultSchema), METHOD_NOT_FOUND))

  await check('forbidden: the client calls it plainly', async () => {
    const messages = []
    for await (const message of there.tasks.callToolStream(policy.forbidden)) messages.push(message)
    expectSame(messages, [{ type: 'result', result: await direct.client.callTool(policy.forbidden) }], 'messages')
  })

  await check('forbidden: refused as a task', () =>
    refused(there.client.request(
      { method: 'tools/call', params: policy.refused.forbidden }, CreateTaskResultSchema, { task: {} }), METHOD_NOT_FOUND))

  await check('denied: unknown, with a task and without', async () => {
    const request = { method: 'tools/call', params: policy.denied }
    await refused(there.client.request(request, CallToolResultSchema), INVALID_PARAMS)
    await refused(there.client.request(request, CreateTaskResultSchema, { task: {} }), INVALID_PARAMS)
  })
}

await (options.policy ? checkPolicy() : checkTasks())
await there.leave()
await direct.leave()
process.exit() // a check that failed may have left a connection open
