// A server that does 2025-11-25 tasks itself, on the low-level server of the v1 SDK.
//
// It is the yardstick for the client scripts: what they check must hold here, with no gateway in
// between, before it can count against the gateway. Its tools are those of plain_tools.py.

import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { parseArgs } from 'node:util'
import { InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import {
  CallToolRequestSchema, CreateMessageResultSchema, ElicitResultSchema, ErrorCode, ListToolsRequestSchema, McpError,
} from '@modelcontextprotocol/sdk/types.js'

const RELATED = 'io.modelcontextprotocol/related-task'
const { values } = parseArgs({ options: { port: { type: 'string' } } })
const journal = []
const counts = new Map()
const store = new (class extends InMemoryTaskStore {
  // A task is read from any session: the id is the secret.
  lookup(taskId) {
    return this.tasks.get(taskId)
  }
})()

const note = (event, label) => journal.push({ event, label })
const text = (value) => ({ content: [{ type: 'text', text: value }] })

/** Resolves after `seconds`, or rejects as soon as the call is cancelled. */
const pause = (seconds, cancelled) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, seconds * 1000)
  cancelled.addEventListener('abort', () => {
    clearTimeout(timer)
    reject(new Error('cancelled'))
  })
})

const person = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] }

const tools = {
  echo: ({ text: value }) => text(value),
  async slow({ seconds, label }, call) {
    note('started', label)
    try {
      await pause(seconds, call.cancelled)
    } catch (cancelled) {
      note('cancelled', label)
      throw cancelled
    }
    note('finished', label)
    return { ...text(JSON.stringify({ label, slept: seconds })), structuredContent: { label, slept: seconds } }
  },
  async steps({ steps, seconds }, call) {
    for (let step = 1; step <= steps; step++) {
      await pause(seconds / steps, call.cancelled)
      await call.progress(step, steps)
    }
    return text(`${steps} steps done`)
  },
  fail: ({ reason }) => ({ ...text(`failed as asked: ${reason}`), isError: true }),
  async ask(_arguments, call) {
    const answer = await call.elicit('Who is there?')
    return text(`Hello, ${answer.content?.name}!`)
  },
  async ask_twice(_arguments, call) {
    const first = await call.elicit('First name?')
    const second = await call.elicit('Second name?')
    return text(`Hello, ${first.content?.name} and ${second.content?.name}!`)
  },
  async summarize({ text: value }, call) {
    const reply = await call.sample(value)
    return text(`Summary: ${reply.content.text}`)
  },
  count({ label }) {
    counts.set(label, (counts.get(label) ?? 0) + 1)
    return text(String(counts.get(label)))
  },
  large: ({ kilobytes }) => text('0123456789 äöü 漢字 🙂 '.repeat(kilobytes * 32)),
}

/** What a running tool may do. Questions go out on the session's GET stream, where every client looks. */
function callContext(server, extra, taskId) {
  const controller = new AbortController()
  const related = taskId === undefined ? {} : { [RELATED]: { taskId } }
  const asking = async (request, schema) => {
    if (taskId === undefined) return extra.sendRequest(request, schema)
    await store.updateTaskStatus(taskId, 'input_required')
    const reply = await server.request(request, schema)
    await store.updateTaskStatus(taskId, 'working')
    return reply
  }
  return {
    cancelled: controller.signal,
    cancel: () => controller.abort(),
    elicit: (message) => asking(
      { method: 'elicitation/create', params: { message, requestedSchema: person, _meta: related } }, ElicitResultSchema),
    sample: (value) => asking(
      {
        method: 'sampling/createMessage',
        params: { messages: [{ role: 'user', content: { type: 'text', text: value } }], maxTokens: 50, _meta: related },
      }, CreateMessageResultSchema),
    async progress(progress, total) {
      const progressToken = extra._meta?.progressToken
      if (progressToken === undefined) return
      const notification = { method: 'notifications/progress', params: { progressToken, progress, total, _meta: related } }
      await (taskId === undefined ? extra.sendNotification(notification) : server.notification(notification))
    },
  }
}

/** Runs the tool for a task and writes its end, unless a cancel was there first. */
async function hold(tool, request, call, taskId) {
  const watch = setInterval(async () => {
    if ((await store.getTask(taskId))?.status === 'cancelled') call.cancel()
  }, 50)
  try {
    const result = await tool(request.params.arguments ?? {}, call)
    await store.storeTaskResult(taskId, result.isError ? 'failed' : 'completed', result)
  } catch (failure) {
    if (!call.cancelled.aborted) console.error(failure)
  } finally {
    clearInterval(watch)
  }
}

function newServer() {
  const capabilities = { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } }
  const server = new Server({ name: 'native-tasks', version: '1.0.0' }, { capabilities, taskStore: store })
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: Object.keys(tools).map((name) => ({
      name, inputSchema: { type: 'object' }, execution: { taskSupport: 'optional' },
    })),
  }))
  server.setRequestHandler(CallToolRequestSchema, async (request, extra) => {
    const tool = tools[request.params.name]
    if (!tool) throw new McpError(ErrorCode.InvalidParams, `Unknown tool: ${request.params.name}`)
    if (request.params.task === undefined) {
      const call = callContext(server, extra)
      extra.signal.addEventListener('abort', call.cancel)
      return tool(request.params.arguments ?? {}, call)
    }
    const task = await store.createTask(
      { ttl: request.params.task.ttl ?? 600_000, pollInterval: 200 }, extra.requestId, request)
    const created = { ...task } // the store goes on writing to its own
    void hold(tool, request, callContext(server, extra, task.taskId), task.taskId)
    return { task: created }
  })
  return server
}

const sessions = new Map()

async function serve(request, response) {
  if (request.url === '/journal') {
    response.setHeader('content-type', 'application/json').end(JSON.stringify(journal))
    return
  }
  let transport = sessions.get(request.headers['mcp-session-id'])
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
    })
    await newServer().connect(transport)
  }
  await transport.handleRequest(request, response)
}

createServer((request, response) => {
  serve(request, response).catch((failure) => {
    console.error(failure)
    response.writeHead(500).end()
  })
}).listen(Number(values.port), '127.0.0.1')
