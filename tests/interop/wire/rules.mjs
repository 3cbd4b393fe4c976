// Rules of a conversation of 2025-11-25 or before that no schema can hold. Each returns the breaches it found, as text.

import { isDeepStrictEqual } from 'node:util'

const RELATED = 'io.modelcontextprotocol/related-task'
const MODERN_META = ['serverInfo', 'subscriptionId', 'protocolVersion', 'clientCapabilities'].map((key) => `io.modelcontextprotocol/${key}`)
const URL_ELICITATION = -32042
const FIRST_WITH_HEADER = '2025-06-18'
const FIRST_WITH_ELICITATION = '2025-06-18'
const FIRST_WITH_TASKS = '2025-11-25'
const TERMINAL = ['completed', 'failed', 'cancelled']
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/

const LAST = FIRST_WITH_TASKS
const earlier = (one, other) => (one < other ? one : other)
const short = (value) => JSON.stringify(value).slice(0, 200)
const related = (object) => object?._meta?.[RELATED]?.taskId
const answersTo = (entries, method) => entries.filter(
  (entry) => entry.from === 'server' && entry.asked?.message.method === method && entry.message.result !== undefined)
const isTaskCall = ({ message }) => message.method === 'tools/call' && message.params?.task !== undefined

/** Every state of a task that a server showed, with the entry that showed it. */
function* shownTasks(entries) {
  for (const entry of entries.filter(({ from }) => from === 'server')) {
    const { message, asked } = entry
    if (message?.method === 'notifications/tasks/status') yield { task: message.params, entry }
    if (message?.result === undefined || !asked) continue
    const { method } = asked.message
    // A result without a task is found by the schema.
    if (isTaskCall(asked) && message.result.task) yield { task: message.result.task, entry, created: true }
    if (method === 'tasks/get' || method === 'tasks/cancel') yield { task: message.result, entry }
    if (method === 'tasks/list') for (const task of message.result.tasks ?? []) yield { task, entry }
  }
}

/** What a server, here the gateway, owes its clients. */
export const towardsClients = {
  'every request has exactly one answer': ({ entries }) => entries
    .filter((entry) => entry.from === 'client' && entry.kindOf === 'request')
    .filter(({ answers = [], exchange }) => answers.length > 1 || (answers.length === 0 && exchange?.end === 'complete'))
    .filter(({ exchange, message, answers = [] }) =>
      // A refusal in HTTP, and a cancelled request, stay without one.
      answers.length > 1 || !(exchange?.response?.status >= 400 || wasCancelled(entries, message, exchange)))
    .map(({ message, answers = [] }) => `${answers.length} answers to ${short(message)}`),

  'the version asked for is agreed on': ({ entries }) => answersTo(entries, 'initialize')
    // A client that would rather speak a later one is told the last of these.
    .filter(({ message, asked }) => message.result.protocolVersion !== earlier(asked.message.params.protocolVersion, LAST))
    .map(({ message }) => short(message)),

  'a question is asked once': ({ entries }) => repeated(entries
    .filter((entry) => entry.from === 'server' && entry.kindOf === 'request')
    .map(({ session, message }) => `${session} ${JSON.stringify(message.id)} ${message.method}`)),

  'a task starts as working': ({ entries }) => [...shownTasks(entries)]
    .filter(({ created, task }) => created && task.status !== 'working')
    .map(({ task }) => short(task)),

  'a task shows all its members': ({ entries }) => [...shownTasks(entries)]
    .filter(({ task }) => !INSTANT.test(task.createdAt) || !INSTANT.test(task.lastUpdatedAt)
      || !Number.isInteger(task.ttl) || !Number.isInteger(task.pollInterval) || task.statusMessage === null)
    .map(({ task }) => short(task)),

  'an ended task never changes': ({ entries }) => {
    const ended = new Map()
    const breaches = []
    for (const { task, entry } of shownTasks(entries)) {
      const end = ended.get(task.taskId)
      // An answer may have been written before the end and arrive after it; only one asked for afterwards counts.
      const asked = entry.asked ? entries.indexOf(entry.asked) : -1
      if (end && asked > end.at && !isDeepStrictEqual(bare(task), bare(end.task))) breaches.push(`${short(end.task)} became ${short(task)}`)
      if (!end && TERMINAL.includes(task.status)) ended.set(task.taskId, { task, at: entries.indexOf(entry) })
    }
    return breaches
  },

  'createdAt and ttl of a task are constant': ({ entries }) => {
    const first = new Map()
    const breaches = []
    for (const { task } of shownTasks(entries)) {
      const known = first.get(task.taskId) ?? task
      first.set(task.taskId, known)
      if (known.createdAt !== task.createdAt || known.ttl !== task.ttl) breaches.push(`${short(known)} became ${short(task)}`)
    }
    return breaches
  },

  'a result names its task': ({ entries }) => answersTo(entries, 'tasks/result')
    .filter(({ message, asked }) => related(message.result) !== asked.message.params.taskId)
    .map(({ message }) => short(message)),

  'tasks/get, list and cancel name no related task': ({ entries }) => ['tasks/get', 'tasks/list', 'tasks/cancel']
    .flatMap((method) => answersTo(entries, method))
    .filter(({ message }) => related(message.result) !== undefined)
    .map(({ message }) => short(message)),

  'tasks/get, list and cancel are answered as JSON': ({ entries }) => ['tasks/get', 'tasks/list', 'tasks/cancel']
    .flatMap((method) => answersTo(entries, method))
    .filter(({ exchange }) => exchange && !exchange.response.contentType.startsWith('application/json'))
    .map(({ message }) => short(message)),

  'related tasks are known to the caller': ({ entries }) => {
    const known = new Set([...shownTasks(entries)].map(({ task }) => task.taskId))
    return entries
      .filter(({ from, message }) => from === 'server' && related(message?.params) !== undefined)
      .filter(({ message }) => !known.has(related(message.params)))
      .map(({ message }) => short(message))
  },

  'nothing of the stateless protocol': ({ entries }) => entries
    .filter(({ from, message }) => from === 'server' && (
      ['resultType', 'cacheScope', 'inputRequests', 'requestState'].some((member) => message?.result?.[member] !== undefined)
      || Object.keys(message?.result?._meta ?? {}).some((key) => MODERN_META.includes(key))
      || MODERN_META.some((key) => message?.params?._meta?.[key] !== undefined)
      || (message?.error?.code <= -32020 && message.error.code >= -32099 && message.error.code !== URL_ELICITATION)))
    .map(({ message }) => short(message)),

  'progress rises': ({ entries }) => {
    const last = new Map()
    const breaches = []
    for (const { from, session, message } of entries) {
      if (from === 'client' && message?.params?._meta?.progressToken !== undefined) {
        last.delete(`${session} ${JSON.stringify(message.params._meta.progressToken)}`)
      }
      if (from !== 'server' || message?.method !== 'notifications/progress') continue
      const token = `${session} ${JSON.stringify(message.params.progressToken)}`
      if (last.get(token) >= message.params.progress) breaches.push(`${short(message)} after ${last.get(token)}`)
      last.set(token, message.params.progress)
    }
    return breaches
  },

  'progress carries a token that the client gave': ({ entries }) => {
    const given = new Set()
    const breaches = []
    for (const { from, session, message } of entries) {
      const token = `${session} ${JSON.stringify(message?.params?._meta?.progressToken)}`
      if (from === 'client') given.add(token)
      if (from !== 'server' || message?.method !== 'notifications/progress') continue
      if (!given.has(`${session} ${JSON.stringify(message.params.progressToken)}`)) breaches.push(short(message))
    }
    return breaches
  },

  'a GET stream carries no answers': ({ exchanges }) => exchanges
    .filter(({ request, response }) => request?.method === 'GET' && request.resumes === undefined && response?.status < 400)
    .flatMap(({ messages }) => messages.filter(({ kindOf, from }) => from === 'server' && kindOf === 'answer'))
    .map(({ message }) => short(message)),

  'notifications and answers get 202 without a body': ({ exchanges }) => exchanges
    .filter(({ messages, response }) => response && response.status < 400
      && messages[0]?.from === 'client' && ['notification', 'answer'].includes(messages[0].kindOf))
    .filter(({ response, messages }) => response.status !== 202 || messages.length > 1)
    .map(({ response, messages }) => `${response.status} for ${short(messages[0].message)}`),
}

/** What a client, here the gateway, owes a server that knows nothing of tasks. */
export const towardsServers = {
  'no word of tasks': ({ entries }) => entries
    .filter(({ from }) => from === 'client')
    .filter(({ message, kindOf }) => message?.method?.startsWith('tasks/')
      || (kindOf === 'request' && message.params?.task !== undefined)
      || related(message?.params) !== undefined || related(message?.result) !== undefined
      || (message?.method === 'initialize' && message.params.capabilities?.tasks !== undefined))
    .map(({ message }) => short(message)),

  'request ids are not used twice in a session': ({ entries }) => repeated(entries
    .filter((entry) => entry.from === 'client' && entry.kindOf === 'request' && entry.session !== undefined)
    .map(({ session, message }) => `${session} ${JSON.stringify(message.id)}`)),

  'every question is answered at most once': ({ entries }) => entries
    .filter((entry) => entry.from === 'server' && entry.kindOf === 'request' && entry.answers?.length > 1)
    .map(({ message }) => short(message)),

  'posts accept JSON and event streams': ({ exchanges }) => exchanges
    .filter(({ request }) => request?.method === 'POST')
    .filter(({ request }) => !/application\/json/.test(request.accept) || !/text\/event-stream/.test(request.accept))
    .map(({ request }) => short(request)),

  'the negotiated version is sent': ({ exchanges }) => exchanges
    .filter(({ request, messages }) => request?.session !== undefined && messages[0]?.message?.method !== 'initialize')
    .filter(({ request, session }) => {
      const version = negotiated(exchanges, session)
      return request.version !== version && !(request.version === undefined && version < FIRST_WITH_HEADER)
    })
    .map(({ request }) => short(request)),

  'nothing is declared that the version lacks': ({ entries }) => entries
    .filter(({ from, message }) => from === 'client' && message?.method === 'notifications/initialized')
    .map(({ session }) => entries.find((entry) => entry.session === session && entry.message?.method === 'initialize'))
    .filter(({ message, answers = [] }) => isAhead(message.params.capabilities, answers[0]?.message.result?.protocolVersion))
    .map(({ message }) => short(message)),
}

/**
 * Whether the server was told to cancel the tool call whose arguments carry this label, before its session ended; a process
 * that was ended before `stopping`, without an answer to it, needs no telling.
 */
export function sawCancel({ entries, ended = new Map() }, label, stopping = -Infinity) {
  // In the stateless protocol it is told so over stdio alone: over HTTP the stream ends.
  return entries.some((entry) => {
    const { from, message, era, exchange, session, answers } = entry
    return (era === 'legacy' || !exchange) && from === 'client' && message?.method === 'tools/call'
      && message.params?.arguments?.label === label
      && (wasCancelled(entries, message, entry) || (!answers && ended.get(session) < stopping))
  })
}

const labelledCalls = ({ entries }, label) => entries.filter(({ from, message }) =>
  from === 'client' && message?.method === 'tools/call' && message.params.arguments?.label === label)

/** What is wrong with the calls of this label, each of which the gateway has to refuse and to keep from the server. */
export function refusalFaults(clients, server, label) {
  const asked = labelledCalls(clients, label)
  const accepted = asked.filter(({ answers }) => !answers?.[0].message.error)
  const faults = [...accepted, ...labelledCalls(server, label)].map(({ message }) => short(message))
  return asked.length === 0 ? ['nothing was there to be refused'] : faults
}

/** Tool calls by name and arguments, with how often each was asked for, and how often it was not refused. */
export function toolCalls({ entries }, refused) {
  const calls = new Map()
  for (const { from, message, answers = [], exchange } of entries) {
    if (from !== 'client' || message?.method !== 'tools/call') continue
    const { name, arguments: given, inputResponses, requestState, task } = message.params ?? {}
    if (refused !== undefined && given?.label === refused) continue
    const key = JSON.stringify([name, given ?? {}])
    const call = calls.get(key) ?? { asked: 0, rounds: 0, ran: 0 }
    calls.set(key, call)
    // Answers without a state are for a call that went before, or for none that this server knows of.
    if (inputResponses !== undefined && requestState === undefined) call.rounds++
    if (inputResponses !== undefined || requestState !== undefined) continue // a further round of a call that was counted
    call.asked++
    // Refused before it could run: as a task, or with a status that says so; for who asks, without an answer to the call.
    const { error } = answers[0]?.message ?? {}
    const status = exchange?.response?.status
    if (!(error && (task !== undefined || status >= 400)) && !(status === 401 || status === 403)) call.ran++
  }
  return calls
}

/** A call reaches the server once: never more often than it was asked for, and never less where it was not refused. */
export function sameCalls(clients, server, refused) {
  const none = { asked: 0, rounds: 0, ran: 0 }
  const [wanted, sent] = [clients, server].map((side) => toolCalls(side, refused))
  return [...new Set([...wanted.keys(), ...sent.keys()])]
    .map((call) => [call, wanted.get(call) ?? none, sent.get(call) ?? none])
    .filter(([, { asked, rounds, ran }, { asked: arrived }]) => arrived > asked + rounds || arrived < ran)
    .map(([call, { asked, ran }, { asked: arrived }]) => `${call.slice(0, 150)} asked for ${asked} times, due ${ran} times, sent ${arrived} times`)
}

function wasCancelled(entries, request, { session }) {
  return entries.some((entry) => entry.from === 'client' && entry.session === session
    && entry.message?.method === 'notifications/cancelled' && entry.message.params.requestId === request.id)
}

/** Whether capabilities name what came after that version, and what a server of it may misread. */
function isAhead({ elicitation, sampling }, version) {
  if (version < FIRST_WITH_ELICITATION && elicitation !== undefined) return true
  return version < FIRST_WITH_TASKS && (elicitation?.url !== undefined || sampling?.tools !== undefined)
}

function negotiated(exchanges, session) {
  const opened = exchanges.find((exchange) => exchange.session === session
    && exchange.messages[0]?.message?.method === 'initialize')
  return opened?.messages.find(({ kindOf }) => kindOf === 'answer')?.message.result?.protocolVersion
}

const bare = ({ _meta, ...task }) => task

function repeated(keys) {
  const seen = new Set()
  return keys.filter((key) => seen.has(key) || !seen.add(key))
}
