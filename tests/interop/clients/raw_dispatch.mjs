// Sends requests of 2026-07-28 as they are, which no SDK does for tasks: the host of ext-tasks has to bring it.

import { SseReader } from '../wire/sse_reader.mjs'

const NAMED = { 'tools/call': 'name', 'prompts/get': 'name', 'resources/read': 'uri', 'tasks/get': 'taskId', 'tasks/update': 'taskId', 'tasks/cancel': 'taskId' }
const PLAIN = /^(?!=\?base64\?)[!-~](?:[ -~]*[!-~])?$/

const encoded = (value) => (PLAIN.test(value) ? value : `=?base64?${Buffer.from(value).toString('base64')}?=`)

/** The headers that mirror the body of a request. */
export function mirrors({ method, params = {} }) {
  const name = params[NAMED[method]]
  return {
    'mcp-protocol-version': params._meta?.['io.modelcontextprotocol/protocolVersion'] ?? '2026-07-28',
    'mcp-method': method,
    ...(name !== undefined && { 'mcp-name': encoded(name) }),
  }
}

/** Headers of which the last one given counts, however their names are written. */
function merged(...all) {
  const headers = new Headers()
  for (const one of all) for (const [name, value] of Object.entries(one)) headers.set(name, value)
  return headers
}

/** Posts one request; resolves with its status and every message that came back, the answer last. */
export async function post(url, request, { headers = {}, signal } = {}) {
  const response = await fetch(url, {
    method: 'POST',
    headers: merged({ 'content-type': 'application/json', accept: 'application/json, text/event-stream' }, mirrors(request), headers),
    body: JSON.stringify(request),
    signal,
  })
  const messages = []
  if (response.headers.get('content-type')?.startsWith('text/event-stream')) {
    const reader = new SseReader(({ data }) => { if (data !== '') messages.push(JSON.parse(data)) })
    for await (const chunk of response.body) reader.push(Buffer.from(chunk))
  } else {
    const body = await response.text()
    if (body !== '') messages.push(JSON.parse(body))
  }
  return { status: response.status, messages, answer: messages.at(-1) }
}

let sent = 0

/** What ext-tasks calls for each of its requests. */
export const dispatcher = (url, headers) => async (request, options = {}) => {
  const id = `raw-${++sent}`
  const { answer } = await post(url, { jsonrpc: '2.0', ...request, id }, {
    headers: { ...headers, ...options.context?.headers }, signal: options.signal,
  })
  if (answer?.id !== id) throw new Error(`no answer to ${id}: ${JSON.stringify(answer)}`)
  return answer.error ? { kind: 'error', error: answer.error } : { kind: 'result', result: answer.result }
}
