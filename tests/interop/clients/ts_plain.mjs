// The TypeScript SDK 2.x alone, as a client of 2026-07-28 that knows nothing of tasks: every call is answered in the call.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { bare, begun, check, expect, expectSame, namesOf, options, sure, tools } from './checks.mjs'

/** A connected client that answers every question, and notes what it was asked. */
async function connect(url, key) {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const client = new Client(
    { name: 'interop-ts-plain', version: '1.0.0' },
    { capabilities: { elicitation: {}, sampling: {} }, versionNegotiation: { mode: 'auto' } })
  const questions = []
  client.setRequestHandler('elicitation/create', (request) => {
    questions.push(request)
    return { action: 'accept', content: { name: 'Ada' } }
  })
  client.setRequestHandler('sampling/createMessage', (request) => {
    questions.push(request)
    return { model: 'none', role: 'assistant', content: { type: 'text', text: 'short' } }
  })
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }))
  return { client, questions }
}

const there = await connect(options.url, options.key)
const direct = await connect(options.direct)
const outcome = (request) => request.then((result) => ({ result: bare(result) }), ({ code }) => ({ error: { code } }))

async function sameBothWays(call, questionsExpected = 0) {
  there.questions.length = 0
  const result = bare(await there.client.callTool(call))
  expect(there.questions.length === questionsExpected, `asked ${there.questions.length} times`)
  expectSame(result, bare(await direct.client.callTool(call)), 'result')
}

await check('the era is modern', () => {
  expect(there.client.getProtocolEra() === 'modern', `era ${there.client.getProtocolEra()}`)
})

await check('list: the tools of the server', async () => {
  expectSame(namesOf(await there.client.listTools()), namesOf(await direct.client.listTools()), 'listed tools')
})

for (const call of tools.same) await check(`the result equals the direct one: ${call.name}`, () => sameBothWays(call))
await check('a slow call is answered in the call', () => sameBothWays(tools.steps))
if (tools.mirrored) await check('arguments that are repeated in headers', () => sameBothWays(tools.mirrored))
if (tools.ask) await check('a question is answered in rounds', () => sameBothWays(tools.ask, 1))
if (tools.ask_twice) await check('two questions, one after the other', () => sameBothWays(tools.ask_twice, 2))
if (tools.sample) await check('a sampling request is answered in rounds', () => sameBothWays(tools.sample, 1))

await check('progress reaches the caller', async () => {
  const progress = []
  await there.client.callTool(tools.steps, { onprogress: (step) => progress.push(step.progress) })
  expectSame(sure(progress), sure([1, 2, 3, 4].slice(0, tools.progress)), 'progress')
})

await check('isError comes as it is', () => sameBothWays(tools.fail))

await check('an unknown tool gives what the server gives', async () => {
  expectSame(await outcome(there.client.callTool(tools.unknown)), await outcome(direct.client.callTool(tools.unknown)), 'outcome')
})

if (tools.count) {
  await check('a tool runs once', async () => {
    expect((await there.client.callTool(tools.count)).content[0].text === '1', 'ran before')
    expect((await direct.client.callTool(tools.count)).content[0].text === '2', 'ran more than once')
  })
}

await check('leaving the stream ends the call', async () => {
  const controller = new AbortController()
  const call = outcome(there.client.callTool(tools.cancel, { signal: controller.signal }))
  await begun()
  controller.abort()
  expect((await call).error, 'there was a result')
})

await check('twenty calls at once', async () => {
  const straight = bare(await direct.client.callTool(tools.steps))
  const all = await Promise.all(Array.from({ length: 20 }, () => there.client.callTool(tools.steps)))
  for (const result of all) expectSame(bare(result), straight, 'result')
})

await there.client.close()
await direct.client.close()
process.exit() // a check that failed may have left a connection open
