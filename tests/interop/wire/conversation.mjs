// Reads what recorder.mjs or tap.mjs wrote and puts requests and answers together again.

import { readFileSync } from 'node:fs'

const VERSION = 'io.modelcontextprotocol/protocolVersion'
const isRequest = (message) => message?.method !== undefined && message.id !== undefined
const isAnswer = (message) => message?.method === undefined && (message?.result !== undefined || message?.error !== undefined)

/** Whether a message claims a version for itself, as every request of the stateless protocol does. */
export const claims = (message) => message?.params?._meta?.[VERSION] !== undefined

/**
 * A conversation: `exchanges` (HTTP only) by number, and `entries`, the messages in their order, each with
 * `from`, `message`, `session`, its `exchange`, its `era` (`legacy` or `modern`), the `scope` in which its id means
 * something, and, for an answer, the entry it answers in `asked`. `ended` says when the gateway was done with a process
 * behind stdio.
 */
export function readConversation(path) {
  const lines = readFileSync(path, 'utf8').split('\n').filter((line) => line !== '').map((line) => JSON.parse(line))
  return connect(lines)
}

/** Without what is about metadata, which is no conversation. */
function withoutMetadata(lines) {
  const asked = lines.filter(({ kind, path }) => kind === 'request' && path?.startsWith('/.well-known/'))
  const exchanges = new Set(asked.map(({ exchange }) => exchange))
  return lines.filter(({ exchange }) => !exchanges.has(exchange))
}

export function connect(all) {
  const lines = withoutMetadata(all)
  const exchanges = new Map()
  for (const line of lines) {
    if (line.exchange === undefined) continue
    const exchange = exchanges.get(line.exchange) ?? { messages: [] }
    exchanges.set(line.exchange, exchange)
    if (line.kind === 'request') Object.assign(exchange, { request: line, session: line.session })
    if (line.kind === 'response') Object.assign(exchange, { response: line, session: line.session })
    if (line.kind === 'end') exchange.end = line.how
    // Who asks claims a version for the whole exchange; where nothing is claimed, the header tells.
    if (line.kind === 'message' && line.from === 'client' && claims(line.message)) exchange.era = 'modern'
  }
  for (const exchange of exchanges.values()) exchange.era ??= exchange.request?.version >= '2026-07-28' ? 'modern' : 'legacy'
  const processes = processEras(lines)
  const entries = []
  const open = new Map()
  for (const line of lines) {
    if (line.kind !== 'message') continue
    const exchange = exchanges.get(line.exchange)
    const session = exchange?.session ?? line.session
    const era = exchange?.era ?? processes.get(session) ?? 'legacy'
    const scope = exchange && era === 'modern' ? `exchange ${line.exchange}` : session
    const entry = { ...line, exchange, session, era, scope }
    exchange?.messages.push(entry)
    entries.push(entry)
    join(entry, open)
  }
  const ended = lines.filter(({ kind, exchange }) => kind === 'end' && exchange === undefined)
  return { exchanges: [...exchanges.values()], entries, ended: new Map(ended.map(({ session, at }) => [session, at])) }
}

/** What of a conversation was said in one era. */
export const inEra = ({ exchanges, entries }, era) => ({
  exchanges: exchanges.filter((exchange) => exchange.era === era),
  entries: entries.filter((entry) => entry.era === era),
})

/** Tells whether a request says nothing but what a client said, apart from the envelope that each hop has of its own. */
export function passedOnFrom({ entries }) {
  const content = ({ message: { method, params: { _meta, ...params } = {} } }) => JSON.stringify([method, params])
  const said = new Set(entries.filter(({ from, kindOf, era }) => from === 'client' && kindOf === 'request' && era === 'modern').map(content))
  return (entry) => entry.kindOf === 'request' && said.has(content(entry))
}

/** A process behind stdio speaks one era, which its client's requests tell. */
function processEras(lines) {
  const eras = new Map()
  for (const { exchange, kind, from, session, message } of lines) {
    if (exchange === undefined && kind === 'message' && from === 'client' && claims(message)) eras.set(session, 'modern')
  }
  return eras
}

/** Notes a request as open, or finds the request that an answer belongs to. */
function join(entry, open) {
  const { message, scope, from } = entry
  const key = (asker) => `${scope} ${asker} ${JSON.stringify(message.id)}`
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
