// The tools of plain_tools.py on the public TypeScript server SDK, which serves both revisions from one definition.
//
// It listens for both revisions, for 2025-11-25 alone and for 2026-07-28 alone, with one journal behind all three, so
// that a client can compare what it gets through a gateway with what it gets straight in its own era.
//
//   node ts_tools.mjs --port PORT --legacy-port PORT --modern-port PORT

import { randomBytes, randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { parseArgs } from 'node:util'
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from '@modelcontextprotocol/node'
import {
  acceptedContent, createMcpHandler, createRequestStateCodec, inputRequired, isLegacyRequest, McpServer,
} from '@modelcontextprotocol/server'
import { z } from 'zod'

const { values } = parseArgs({
  options: { port: { type: 'string' }, 'legacy-port': { type: 'string' }, 'modern-port': { type: 'string' } },
})
const journal = []
const counts = new Map()
const states = createRequestStateCodec({ key: randomBytes(32) })

const note = (event, label) => journal.push({ event, label })
const text = (value) => ({ content: [{ type: 'text', text: value }] })
const whoIs = (message) => inputRequired.elicit({
  message, requestedSchema: { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] },
})

/** Resolves after `seconds`, or rejects as soon as the call is cancelled. */
const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, seconds * 1000)
  signal.addEventListener('abort', () => {
    clearTimeout(timer)
    reject(new Error('cancelled'))
  })
})

const tools = {
  echo: { description: 'Returns the text', inputSchema: { text: z.string() }, run: ({ text: value }) => text(value) },
  slow: {
    description: 'Sleeps, then says so',
    inputSchema: { seconds: z.number(), label: z.string() },
    async run({ seconds, label }, { mcpReq }) {
      note('started', label)
      try {
        await pause(seconds, mcpReq.signal)
      } catch (cancelled) {
        note('cancelled', label)
        throw cancelled
      }
      note('finished', label)
      return { ...text(JSON.stringify({ label, slept: seconds })), structuredContent: { label, slept: seconds } }
    },
  },
  steps: {
    description: 'Reports progress after each of its steps',
    inputSchema: { steps: z.number(), seconds: z.number() },
    async run({ steps, seconds }, { mcpReq }) {
      const progressToken = mcpReq._meta?.progressToken
      for (let step = 1; step <= steps; step++) {
        await pause(seconds / steps, mcpReq.signal)
        if (progressToken === undefined) continue
        await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: step, total: steps } })
      }
      return text(`${steps} steps done`)
    },
  },
  fail: {
    description: 'Fails with the given reason',
    inputSchema: { reason: z.string() },
    run: ({ reason }) => ({ ...text(`failed as asked: ${reason}`), isError: true }),
  },
  ask: {
    description: 'Asks for a name and greets',
    inputSchema: {},
    run(_given, { mcpReq }) {
      if (mcpReq.inputResponses?.name === undefined) return inputRequired({ inputRequests: { name: whoIs('Who is there?') } })
      return text(`Hello, ${acceptedContent(mcpReq.inputResponses, 'name')?.name}!`)
    },
  },
  ask_twice: {
    description: 'Asks for two names, one after the other, under the same key',
    inputSchema: {},
    async run(_given, { mcpReq }) {
      const name = acceptedContent(mcpReq.inputResponses ?? {}, 'name')?.name
      const { first } = mcpReq.requestState() ?? {}
      const again = async (message, state) =>
        inputRequired({ inputRequests: { name: whoIs(message) }, requestState: await states.mint(state) })
      if (name === undefined) return again('First name?', {})
      if (first === undefined) return again('Second name?', { first: name })
      return text(`Hello, ${first} and ${name}!`)
    },
  },
  summarize: {
    description: "Has the client's model write a summary",
    inputSchema: { text: z.string() },
    run({ text: value }, { mcpReq }) {
      const reply = mcpReq.inputResponses?.summary
      if (reply !== undefined) return text(`Summary: ${reply.content.text}`)
      const messages = [{ role: 'user', content: { type: 'text', text: value } }]
      return inputRequired({ inputRequests: { summary: inputRequired.createMessage({ messages, maxTokens: 50 }) } })
    },
  },
  count: {
    description: 'Counts how often it ran with this label',
    inputSchema: { label: z.string() },
    run({ label }) {
      counts.set(label, (counts.get(label) ?? 0) + 1)
      note('counted', label)
      return text(String(counts.get(label)))
    },
  },
  large: {
    description: 'Returns a text of that size',
    inputSchema: { kilobytes: z.number() },
    run: ({ kilobytes }) => text('0123456789 äöü 漢字 🙂 '.repeat(kilobytes * 32)),
  },
  mirrored: {
    description: 'Has arguments that a client repeats in headers',
    inputSchema: {
      region: z.string().meta({ 'x-mcp-header': 'Region' }),
      replicas: z.int().optional().meta({ 'x-mcp-header': 'Replicas' }),
    },
    run: ({ region, replicas = 1 }) => text(`${replicas} in ${region}`),
  },
}

function newServer() {
  const server = new McpServer({ name: 'ts-tools', version: '1.0.0' }, { requestState: { verify: states.verify } })
  for (const [name, { description, inputSchema, run }] of Object.entries(tools)) {
    server.registerTool(name, { description, inputSchema: z.object(inputSchema) }, run)
  }
  return server
}

const sessions = new Map()

async function serveLegacy(request, response, body) {
  const id = request.headers['mcp-session-id']
  let transport = sessions.get(id)
  if (!transport && id !== undefined) {
    response.writeHead(404).end()
    return
  }
  if (!transport) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (created) => sessions.set(created, transport),
      onsessionclosed: (closed) => sessions.delete(closed),
    })
    await newServer().connect(transport)
  }
  await transport.handleRequest(request, response, body)
}

const modern = createMcpHandler(newServer, { legacy: 'reject' })
const serveModern = toNodeHandler(modern)

async function read(request) {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    return undefined // left for the transport to refuse
  }
}

const eras = {
  both: async (request, response, body) => {
    const legacy = await isLegacyRequest(await toWebRequest(request, body ?? {}), body)
    return (legacy ? serveLegacy : serveModern)(request, response, body)
  },
  legacy: serveLegacy,
  modern: serveModern,
}

function listen(port, serve) {
  createServer(async (request, response) => {
    try {
      if (request.url === '/journal') {
        response.setHeader('content-type', 'application/json').end(JSON.stringify(journal))
        return
      }
      await serve(request, response, request.method === 'POST' ? await read(request) : undefined)
    } catch (failure) {
      console.error(failure)
      if (!response.headersSent) response.writeHead(500)
      response.end()
    }
  }).listen(Number(port), '127.0.0.1')
}

listen(values.port, eras.both)
listen(values['legacy-port'], eras.legacy)
listen(values['modern-port'], eras.modern)
