// Reads what recorder.mjs or tap.mjs wrote and puts requests and answers together again.

import { readFileSync } from 'node:fs'

const isRequest = (message) => message?.method !== undefined && message.id !== undefined
const isAnswer = (message) => message?.method === undefined && (message?.result !== undefined || message?.error !== undefined)

/**
 * A conversation: `exchanges` (HTTP only) by number, and `entries`, the messages in their order, each with
 * `from`, `message`, `session`, its `exchange` and, for an answer, the entry it answers in `asked`.
 */
export function readConversation(path) {
  const lines = readFileSync(path, 'utf8').split('\n').filter((line) => line !== '').map((line) => JSON.parse(line))
  return connect(lines)
}

export function connect(lines) {
  const exchanges = new Map()
  for (const line of lines) {
    if (line.exchange === undefined) continue
    const exchange = exchanges.get(line.exchange) ?? { messages: [] }
    exchanges.set(line.exchange, exchange)
    if (line.kind === 'request') Object.assign(exchange, { request: line, session: line.session })
    if (line.kind === 'response') Object.assign(exchange, { response: line, session: line.session })
    if (line.kind === 'end') exchange.end = line.how
  }
  const entries = []
  const open = new Map()
  for (const line of lines) {
    if (line.kind !== 'message') continue
    const exchange = exchanges.get(line.exchange)
    const entry = { ...line, exchange, session: exchange?.session ?? line.session }
    exchange?.messages.push(entry)
    entries.push(entry)
    join(entry, open)
  }
  return { exchanges: [...exchanges.values()], entries }
}

/** Notes a request as open, or finds the request that an answer belongs to. */
function join(entry, open) {
  const { message, session, from } = entry
  const key = (asker) => `${session} ${asker} ${JSON.stringify(message.id)}`
  if (isRequest(message)) {
    entry.kindOf = 'request'
    open.set(key(from), entry)
  } else if (isAnswer(message)) {
    entry.kindOf = 'answer'
    entry.asked = open.get(key(from === 'client' ? 'server' : 'client'))
    if (entry.asked) (entry.asked.answers ??= []).push(entry)
  } else if (message?.method !== undefined) {
    entry.kindOf = 'notification'
  }
}
