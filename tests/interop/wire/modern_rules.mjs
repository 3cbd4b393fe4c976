// Rules of a conversation of 2026-07-28 that no schema can hold. Each returns the breaches it found, as text.
//
// Clients whose label starts with `probe` send wrong messages on purpose; what they are owed is a refusal.

import { isDeepStrictEqual } from 'node:util'

export const EXTENSION = 'io.modelcontextprotocol/tasks'
const META = 'io.modelcontextprotocol/'
const RELATED = `${META}related-task`
const SUBSCRIPTION = `${META}subscriptionId`
const TERMINAL = ['completed', 'failed', 'cancelled']
const ON_TASKS = ['tasks/get', 'tasks/update', 'tasks/cancel']
const LISTS = {
  'notifications/tools/list_changed': 'toolsListChanged',
  'notifications/prompts/list_changed': 'promptsListChanged',
  'notifications/resources/list_changed': 'resourcesListChanged',
}
const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency']
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/
const RANDOM_UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
const STATUSES = { [-32700]: 400, [-32600]: 400, [-32020]: 400, [-32021]: 400, [-32022]: 400, [-32601]: 404 }
/** Codes of earlier revisions, and those that are kept for later ones. */
const isReserved = (code) => code === -32002 || code === -32042 || (code <= -32020 && code >= -32099 && ![-32020, -32021, -32022].includes(code))

const short = (value) => JSON.stringify(value).slice(0, 240)
const capabilities = ({ message }) => message.params?._meta?.[`${META}clientCapabilities`]
export const declaresTasks = (entry) => capabilities(entry)?.extensions?.[EXTENSION] !== undefined
const requests = (entries) => entries.filter(({ from, kindOf }) => from === 'client' && kindOf === 'request')
const fromServer = (entries) => entries.filter(({ from, message }) => from === 'server' && message !== undefined)
const results = (entries, ...methods) => fromServer(entries)
  .filter(({ message, asked }) => message?.result !== undefined && methods.includes(asked?.message.method))
const errorOf = ({ answers }) => answers?.[0]?.message.error
const said = ({ message }) => short(message)
/** A request that the caller left has no say in what became of it. */
const wasLeft = ({ exchange }) => exchange?.end !== undefined && exchange.end !== 'complete'

/** Every state of a task that a server showed, with the entry that showed it. */
function* shownTasks(entries) {
  for (const entry of fromServer(entries)) {
    const { message, asked } = entry
    if (message?.method === 'notifications/tasks') yield { task: message.params, entry }
    if (message?.result === undefined || !asked) continue
    if (message.result.resultType === 'task') yield { task: message.result, entry, created: true }
    if (asked.message.method === 'tasks/get') yield { task: message.result, entry }
  }
}

/** What the caller had seen before it asked for a state that it was then shown. */
const askedAfter = (entries, entry, at) => entry.asked !== undefined && entries.indexOf(entry.asked) > at

function decoded(header) {
  const trimmed = header.replace(/^[ \t]+|[ \t]+$/g, '')
  const sealed = /^=\?base64\?(.*)\?=$/s.exec(trimmed)
  return sealed ? Buffer.from(sealed[1], 'base64').toString('utf8') : trimmed
}

const named = ({ method, params = {} }) => ({
  'tools/call': params.name, 'prompts/get': params.name, 'resources/read': params.uri,
  'tasks/get': params.taskId, 'tasks/update': params.taskId, 'tasks/cancel': params.taskId,
})[method]

/** Which mirrored header of a request, if any, says something else than its body. */
function mismatch({ message, exchange }) {
  const { headers = {}, version } = exchange?.request ?? {}
  const name = named(message)
  if (version !== message.params?._meta?.[`${META}protocolVersion`]) return 'mcp-protocol-version'
  if (headers['mcp-method']?.trim() !== message.method) return 'mcp-method'
  if (headers['mcp-name'] !== undefined && name !== undefined && decoded(headers['mcp-name']) !== name) return 'mcp-name'
  return undefined
}

/** What a server, here the gateway, owes its clients. `all` is every entry of the recording, of either era. */
export const towardsModernClients = {
  'every request has exactly one answer': ({ entries }) => requests(entries)
    .filter((entry) => {
      const { answers = [], exchange } = entry
      return answers.length > 1 || (answers.length === 0 && exchange?.end === 'complete' && exchange.response?.status < 400)
    })
    .map(({ message, answers = [] }) => `${answers.length} answers to ${short(message)}`),

  'no session is opened': ({ exchanges }) => exchanges
    .filter(({ response }) => response?.opened !== undefined)
    .map(({ request }) => short(request)),

  'events carry no ids': ({ entries }) => fromServer(entries).filter(({ eventId }) => eventId !== undefined).map(said),

  'GET and DELETE are refused': ({ exchanges }) => exchanges
    .filter(({ request, response }) => request && request.method !== 'POST' && response && response.status < 400)
    .map(({ request }) => short(request)),

  'a handle is only for a request that declares the extension': ({ entries }) => results(entries, 'tools/call')
    .filter(({ message, asked }) => message.result.resultType === 'task' && !declaresTasks(asked))
    .map(said),

  'tasks are only for requests that declare the extension': ({ entries }) => requests(entries)
    .filter((entry) => ON_TASKS.includes(entry.message.method) && !declaresTasks(entry) && !mismatch(entry))
    .filter((entry) => entry.answers && errorOf(entry)?.code !== -32021)
    .map((entry) => short([entry.message, entry.answers[0].message])),

  'listening to tasks is only for requests that declare the extension': ({ entries }) => requests(entries)
    .filter((entry) => entry.message.params?.notifications?.taskIds !== undefined && !declaresTasks(entry))
    .filter(({ exchange, answers }) => exchange?.messages.some(({ from }) => from === 'server')
      && answers?.[0].message.error?.code !== -32021)
    .map(said),

  'what was missing is named': ({ entries }) => requests(entries)
    .filter((entry) => errorOf(entry)?.code === -32021 && ON_TASKS.includes(entry.message.method))
    .filter((entry) => errorOf(entry).data?.requiredCapabilities?.extensions?.[EXTENSION] === undefined)
    .map((entry) => short(errorOf(entry))),

  'headers that disagree with the body are refused': ({ entries }) => requests(entries)
    .filter((entry) => entry.exchange && mismatch(entry) && entry.answers)
    // What can't be read at all, or has no envelope, is refused for that.
    .filter((entry) => ![-32020, -32602].includes(errorOf(entry)?.code) || !(entry.exchange.response.status >= 400))
    .map((entry) => `${mismatch(entry)}: ${short([entry.exchange.request.headers, entry.message, entry.answers[0].message])}`),

  'a task starts as working': ({ entries }) => [...shownTasks(entries)]
    .filter(({ created, task }) => created && task.status !== 'working').map(({ task }) => short(task)),

  'a task shows all its members': ({ entries }) => [...shownTasks(entries)]
    .filter(({ task }) => !INSTANT.test(task.createdAt) || !INSTANT.test(task.lastUpdatedAt)
      || !Number.isInteger(task.ttlMs) || !Number.isInteger(task.pollIntervalMs) || task.statusMessage === null)
    .map(({ task }) => short(task)),

  'a task has nothing of the other dialect': ({ entries }) => [...shownTasks(entries)]
    .filter(({ task }) => ['ttl', 'pollInterval', 'task', 'requestState'].some((member) => member in task)
      || task.result?._meta?.[RELATED] !== undefined)
    .map(({ task }) => short(task)),

  'a handle is nothing but a handle': ({ entries }) => [...shownTasks(entries)]
    .filter(({ created, task }) => created && ['result', 'error', 'inputRequests'].some((member) => member in task))
    .map(({ task }) => short(task)),

  'an ended task never changes': ({ entries }) => {
    const ended = new Map()
    const breaches = []
    for (const { task, entry } of shownTasks(entries)) {
      const end = ended.get(task.taskId)
      if (end && askedAfter(entries, entry, end.at) && !isDeepStrictEqual(bare(task), bare(end.task))) {
        breaches.push(`${short(end.task)} became ${short(task)}`)
      }
      if (!end && TERMINAL.includes(task.status)) ended.set(task.taskId, { task, at: entries.indexOf(entry) })
    }
    return breaches
  },

  'a cancelled task stays cancelled': ({ entries }) => {
    const acknowledged = new Map()
    const ended = new Set()
    const breaches = []
    for (const entry of fromServer(entries)) {
      const { message, asked } = entry
      const taskId = asked?.message.params?.taskId
      if (message.result !== undefined && asked?.message.method === 'tasks/cancel' && !ended.has(taskId)) {
        acknowledged.set(taskId, entries.indexOf(entry))
      }
      if (message.result === undefined || asked?.message.method !== 'tasks/get') continue
      const { status } = message.result
      const at = acknowledged.get(taskId)
      if (at !== undefined && askedAfter(entries, entry, at) && !TERMINAL.includes(status)) breaches.push(short(message.result))
      if (TERMINAL.includes(status)) ended.add(taskId)
    }
    return breaches
  },

  'createdAt of a task is constant, its ttl never shrinks': ({ entries }) => {
    const first = new Map()
    const breaches = []
    for (const { task } of shownTasks(entries)) {
      const known = first.get(task.taskId) ?? task
      first.set(task.taskId, task)
      if (known.createdAt !== task.createdAt || task.ttlMs < known.ttlMs) breaches.push(`${short(known)} became ${short(task)}`)
    }
    return breaches
  },

  'a task is there until its ttl is over': ({ entries }) => {
    const until = new Map()
    const breaches = []
    for (const entry of fromServer(entries)) {
      for (const { task, entry: shown } of shownTasks([entry])) {
        const caller = shown.asked?.exchange?.request.caller
        until.set(`${caller} ${task.taskId}`, Date.parse(task.createdAt) + task.ttlMs)
      }
      const { message, asked, at } = entry
      if (message?.error?.code !== -32602 || !ON_TASKS.includes(asked?.message.method)) continue
      // Only answers for something that is wrong with the answers are left to say with this code.
      if (asked.message.method === 'tasks/update' && Object.keys(asked.message.params.inputResponses ?? {}).length > 0) continue
      const end = until.get(`${asked.exchange?.request.caller} ${asked.message.params.taskId}`)
      if (end !== undefined && at < end) breaches.push(short([asked.message, message]))
    }
    return breaches
  },

  'task ids are random': ({ entries }) => {
    const ids = [...new Set([...shownTasks(entries)].filter(({ created }) => created).map(({ task }) => task.taskId))]
    const starts = repeated(ids.map((id) => id.slice(0, 8)))
    return [...ids.filter((id) => !RANDOM_UUID.test(id)), ...starts.map((start) => `several ids start with ${start}`)]
  },

  'only a known task is acknowledged': ({ entries }, all) => {
    const known = new Set(all.filter(({ from }) => from === 'server').flatMap(({ message }) =>
      [message?.result?.taskId, message?.result?.task?.taskId]))
    return results(entries, 'tasks/update', 'tasks/cancel')
      .filter(({ asked }) => !known.has(asked.message.params.taskId))
      .map(({ asked }) => short(asked.message))
  },

  'an acknowledgement is empty': ({ entries }) => results(entries, 'tasks/update', 'tasks/cancel')
    .filter(({ message }) => Object.keys(message.result).some((member) => !['resultType', '_meta'].includes(member)))
    .map(said),

  'the key of an answered question is never used again': ({ entries }) => {
    const asked = new Map() // by task: the keys there were, and those there are
    const breaches = []
    for (const { task, entry } of shownTasks(entries)) {
      if (entry.asked?.message.method !== 'tasks/get') continue
      const { gone, open } = asked.get(task.taskId) ?? { gone: new Map(), open: [] }
      const now = Object.keys(task.inputRequests ?? {})
      const at = entries.indexOf(entry)
      for (const key of now) {
        if (gone.has(key) && askedAfter(entries, entry, gone.get(key))) breaches.push(`${key} of ${short(task)}`)
      }
      for (const key of open.filter((key) => !now.includes(key))) if (!gone.has(key)) gone.set(key, at)
      asked.set(task.taskId, { gone, open: now })
    }
    return breaches
  },

  'only what the request can do is asked for': ({ entries }) => results(entries, 'tools/call', 'prompts/get', 'resources/read')
    .flatMap(({ message, asked }) => Object.values(message.result.inputRequests ?? {})
      .filter((question) => !canAnswer(capabilities(asked) ?? {}, question))
      .map(short)),

  'removed methods are unknown': ({ entries }) => requests(entries)
    .filter(({ message }) => ['initialize', 'ping', 'logging/setLevel', 'resources/subscribe', 'resources/unsubscribe', 'tasks/list', 'tasks/result']
      .includes(message.method))
    .filter((entry) => entry.answers && !mismatch(entry) && errorOf(entry)?.code !== -32601)
    .map((entry) => short([entry.message, entry.answers[0].message])),

  'errors have the status that is theirs': ({ entries }) => fromServer(entries)
    .filter(({ message, exchange, via }) => message?.error && exchange?.response && via !== 'sse'
      && (STATUSES[message.error.code] ?? exchange.response.status) !== exchange.response.status)
    .map(({ message, exchange }) => `${exchange.response.status} for ${short(message)}`),

  'no code of another revision': ({ entries }) => fromServer(entries).filter(({ message }) => isReserved(message?.error?.code)).map(said),

  'progress rises': ({ entries }) => {
    const last = new Map()
    const breaches = []
    for (const { scope, message } of fromServer(entries)) {
      if (message?.method !== 'notifications/progress') continue
      const token = `${scope} ${JSON.stringify(message.params.progressToken)}`
      if (last.get(token) >= message.params.progress) breaches.push(`${short(message)} after ${last.get(token)}`)
      last.set(token, message.params.progress)
    }
    return breaches
  },

  'progress and logs are what the request asked for': ({ entries }) => fromServer(entries)
    .filter(({ message }) => ['notifications/progress', 'notifications/message'].includes(message?.method))
    .filter(({ message, scope }) => !entries.some((entry) => entry.scope === scope && entry.kindOf === 'request' && wanted(entry.message, message)))
    .map(said),

  'a subscription is acknowledged first, and tagged': ({ entries }) => requests(entries)
    .filter(({ message }) => message.method === 'subscriptions/listen')
    .flatMap(({ message: { id }, exchange }) => {
      const told = exchange?.messages.filter(({ from, kindOf }) => from === 'server' && kindOf === 'notification') ?? []
      const wrong = told.filter(({ message }) => message.params?._meta?.[SUBSCRIPTION] !== id)
      if (told.length > 0 && told[0].message.method !== 'notifications/subscriptions/acknowledged') wrong.push(told[0])
      return wrong.map(said)
    }),

  'a subscriber is told only what it asked for': ({ entries }) => requests(entries)
    .filter(({ message }) => message.method === 'subscriptions/listen')
    .flatMap(({ message: { params }, exchange }) => (exchange?.messages ?? [])
      .filter(({ from, kindOf }) => from === 'server' && kindOf === 'notification')
      .filter(({ message }) => !subscribed(params?.notifications ?? {}, message))
      .map(said)),
}

function canAnswer(declared, { method, params }) {
  if (method === 'sampling/createMessage') return declared.sampling !== undefined && (params?.tools === undefined || declared.sampling.tools !== undefined)
  if (method === 'roots/list') return declared.roots !== undefined
  if (method !== 'elicitation/create' || declared.elicitation === undefined) return false
  const { form, url } = declared.elicitation
  return params?.mode === 'url' ? url !== undefined : form !== undefined || url === undefined
}

function wanted({ params }, { method, params: told }) {
  if (method === 'notifications/progress') return params?._meta?.progressToken === told.progressToken
  const level = params?._meta?.[`${META}logLevel`]
  return level !== undefined && LEVELS.indexOf(told.level) >= LEVELS.indexOf(level)
}

function subscribed(filter, { method, params }) {
  if (method === 'notifications/subscriptions/acknowledged') return true
  if (LISTS[method]) return filter[LISTS[method]] === true
  if (method === 'notifications/resources/updated') return filter.resourceSubscriptions?.includes(params.uri)
  return method === 'notifications/tasks' && filter.taskIds?.includes(params.taskId)
}

/** What a client, here the gateway, owes a server that knows nothing of tasks; what it only passed on is its client's. */
export const towardsModernServers = {
  'no word of tasks': ({ entries }) => requests(entries)
    .filter((entry) => entry.message.method.startsWith('tasks/') || entry.message.params?.task !== undefined
      || declaresTasks(entry) || capabilities(entry)?.tasks !== undefined || entry.message.params?.notifications?.taskIds !== undefined)
    .map(said),

  'headers say what the body says': ({ entries }) => requests(entries)
    .filter((entry) => entry.exchange)
    .filter((entry) => mismatch(entry) || (named(entry.message) !== undefined && entry.exchange.request.headers?.['mcp-name'] === undefined))
    .map((entry) => short([entry.exchange.request, entry.message])),

  'posts accept JSON and event streams': ({ exchanges }) => exchanges
    .filter(({ request }) => request?.method === 'POST')
    .filter(({ request }) => !/application\/json/.test(request.accept) || !/text\/event-stream/.test(request.accept))
    .map(({ request }) => short(request)),

  'no session is named': ({ exchanges }) => exchanges.filter(({ request }) => request?.session !== undefined).map(({ request }) => short(request)),

  'a state comes back as it was given, for the same call': ({ entries }, all, passedOn = () => false) => requests(entries)
    .filter((entry) => entry.message.params?.requestState !== undefined && !passedOn(entry))
    .filter(({ message }) => !entries.some(({ from, message: given, asked }) => from === 'server'
      && given?.result?.requestState === message.params.requestState && sameCall(asked?.message, message)))
    .map(said),

  'answers are for what was asked': ({ entries }, all, passedOn = () => false) => requests(entries)
    .filter((entry) => entry.message.params?.inputResponses !== undefined && !passedOn(entry))
    .filter(({ message }) => !entries.some(({ from, message: given, asked }) => from === 'server'
      && sameCall(asked?.message, message)
      && Object.keys(message.params.inputResponses).every((key) => given?.result?.inputRequests?.[key] !== undefined)))
    .map(said),
}

const sameCall = (one, other) => one?.method === other.method && one.params.name === other.params.name
  && one.params.uri === other.params.uri && isDeepStrictEqual(one.params.arguments ?? {}, other.params.arguments ?? {})

/** Whether the server saw the cancel of the tool call whose arguments carry this label: its stream was closed. */
export function sawClose({ entries }, label) {
  return requests(entries).some((entry) =>
    entry.message.method === 'tools/call' && entry.message.params?.arguments?.label === label && wasLeft(entry))
}

const bare = ({ _meta, resultType, ...task }) => task

function repeated(keys) {
  const seen = new Set()
  return keys.filter((key) => seen.has(key) || !seen.add(key))
}
