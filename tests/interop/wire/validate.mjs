// Holds every message of one party against the schema of its era, by the method it belongs to: revision 2025-11-25, or
// 2026-07-28 with the tasks extension.

import { faultOf } from './schema.mjs'

/** Definitions of 2025-11-25, by method. */
const LEGACY_REQUESTS = {
  initialize: 'InitializeRequest',
  ping: 'PingRequest',
  'tools/list': 'ListToolsRequest',
  'tools/call': 'CallToolRequest',
  'resources/list': 'ListResourcesRequest',
  'resources/templates/list': 'ListResourceTemplatesRequest',
  'resources/read': 'ReadResourceRequest',
  'resources/subscribe': 'SubscribeRequest',
  'resources/unsubscribe': 'UnsubscribeRequest',
  'prompts/list': 'ListPromptsRequest',
  'prompts/get': 'GetPromptRequest',
  'completion/complete': 'CompleteRequest',
  'logging/setLevel': 'SetLevelRequest',
  'tasks/get': 'GetTaskRequest',
  'tasks/result': 'GetTaskPayloadRequest',
  'tasks/list': 'ListTasksRequest',
  'tasks/cancel': 'CancelTaskRequest',
  'elicitation/create': 'ElicitRequest',
  'sampling/createMessage': 'CreateMessageRequest',
  'roots/list': 'ListRootsRequest',
}

const LEGACY_RESULTS = {
  initialize: 'InitializeResult',
  ping: 'EmptyResult',
  'tools/list': 'ListToolsResult',
  'resources/list': 'ListResourcesResult',
  'resources/templates/list': 'ListResourceTemplatesResult',
  'resources/read': 'ReadResourceResult',
  'resources/subscribe': 'EmptyResult',
  'resources/unsubscribe': 'EmptyResult',
  'prompts/list': 'ListPromptsResult',
  'prompts/get': 'GetPromptResult',
  'completion/complete': 'CompleteResult',
  'logging/setLevel': 'EmptyResult',
  'tasks/get': 'GetTaskResult',
  'tasks/result': 'CallToolResult', // the only task-augmented request of a server is tools/call
  'tasks/list': 'ListTasksResult',
  'tasks/cancel': 'CancelTaskResult',
  'elicitation/create': 'ElicitResult',
  'sampling/createMessage': 'CreateMessageResult',
  'roots/list': 'ListRootsResult',
}

const LEGACY_NOTIFICATIONS = {
  'notifications/cancelled': 'CancelledNotification',
  'notifications/initialized': 'InitializedNotification',
  'notifications/progress': 'ProgressNotification',
  'notifications/message': 'LoggingMessageNotification',
  'notifications/roots/list_changed': 'RootsListChangedNotification',
  'notifications/tools/list_changed': 'ToolListChangedNotification',
  'notifications/prompts/list_changed': 'PromptListChangedNotification',
  'notifications/resources/list_changed': 'ResourceListChangedNotification',
  'notifications/resources/updated': 'ResourceUpdatedNotification',
  'notifications/elicitation/complete': 'ElicitationCompleteNotification',
  'notifications/tasks/status': 'TaskStatusNotification',
}

/** Definitions of 2026-07-28 and, where they come second, of the extension; a message has to fit each of its own. */
const MODERN_REQUESTS = {
  'server/discover': 'DiscoverRequest',
  'tools/list': 'ListToolsRequest',
  'tools/call': 'CallToolRequest',
  'resources/list': 'ListResourcesRequest',
  'resources/templates/list': 'ListResourceTemplatesRequest',
  'resources/read': 'ReadResourceRequest',
  'prompts/list': 'ListPromptsRequest',
  'prompts/get': 'GetPromptRequest',
  'completion/complete': 'CompleteRequest',
  'subscriptions/listen': 'SubscriptionsListenRequest',
}

const MODERN_RESULTS = {
  'server/discover': 'DiscoverResult',
  'tools/list': 'ListToolsResult',
  'tools/call': 'CallToolResult',
  'resources/list': 'ListResourcesResult',
  'resources/templates/list': 'ListResourceTemplatesResult',
  'resources/read': 'ReadResourceResult',
  'prompts/list': 'ListPromptsResult',
  'prompts/get': 'GetPromptResult',
  'completion/complete': 'CompleteResult',
  'subscriptions/listen': 'SubscriptionsListenResult',
}

const MODERN_NOTIFICATIONS = {
  'notifications/cancelled': 'CancelledNotification',
  'notifications/progress': 'ProgressNotification',
  'notifications/message': 'LoggingMessageNotification',
  'notifications/tools/list_changed': 'ToolListChangedNotification',
  'notifications/prompts/list_changed': 'PromptListChangedNotification',
  'notifications/resources/list_changed': 'ResourceListChangedNotification',
  'notifications/resources/updated': 'ResourceUpdatedNotification',
  'notifications/subscriptions/acknowledged': 'SubscriptionsAcknowledgedNotification',
}

const EXTENSION_REQUESTS = {
  'tasks/get': 'GetTaskRequest',
  'tasks/update': 'UpdateTaskRequest',
  'tasks/cancel': 'CancelTaskRequest',
}

const EXTENSION_RESULTS = {
  'tasks/get': 'GetTaskResult',
  'tasks/update': 'UpdateTaskResult',
  'tasks/cancel': 'CancelTaskResult',
}

const EXTENSION_NOTIFICATIONS = { 'notifications/tasks': 'TaskStatusNotification' }

/** Errors whose code is the specification's own have a shape of their own. */
const MODERN_ERRORS = {
  [-32020]: 'HeaderMismatchError',
  [-32021]: 'MissingRequiredClientCapabilityError',
  [-32022]: 'UnsupportedProtocolVersionError',
}

/** Who may answer that more is needed before the result is there. */
const IN_ROUNDS = ['tools/call', 'prompts/get', 'resources/read']

function faultOfLegacyResult({ message, asked }) {
  const { method, params } = asked.message
  const check = (definition) => faultOf('legacy', definition, message.result)
  if (method === 'tools/call' && params?.task !== undefined) return check('CreateTaskResult')
  if (method === 'tools/call') return check('CallToolResult')
  return LEGACY_RESULTS[method] ? check(LEGACY_RESULTS[method]) : `a result for ${method}, which is not of this revision`
}

function faultOfModernResult({ message: { result }, asked }) {
  const { method } = asked.message
  if (result?.resultType === 'input_required') {
    return IN_ROUNDS.includes(method) ? faultOf('modern', 'InputRequiredResult', result) : `input_required for ${method}`
  }
  if (result?.resultType === 'task') {
    return method === 'tools/call' ? faultOf('extension', 'CreateTaskResult', result) : `a task for ${method}`
  }
  // The schema leaves the type open for extensions; no other is known here.
  if (result?.resultType !== 'complete') return `resultType ${JSON.stringify(result?.resultType)}`
  if (EXTENSION_RESULTS[method]) return faultOf('extension', EXTENSION_RESULTS[method], result) ?? faultOfInlined(result)
  return MODERN_RESULTS[method]
    ? faultOf('modern', MODERN_RESULTS[method], result)
    : `a result for ${method}, which is not of this revision`
}

/** The result in a completed task is what the call would have returned. */
const faultOfInlined = ({ status, result }) => (status === 'completed' ? faultOf('modern', 'CallToolResult', result) : undefined)

function faultOfError({ message, era }) {
  const special = era === 'modern' ? MODERN_ERRORS[message.error?.code] : undefined
  return special ? faultOf('modern', special, message) : faultOf(era, 'JSONRPCErrorResponse', message)
}

function faultOfAnswer(entry) {
  const { message, asked, exchange, era } = entry
  if (message.error !== undefined) {
    // An error may go without an id only where the request could not be read.
    return faultOfError(entry) ?? (asked || exchange?.response?.status >= 400 ? undefined : 'an error that answers no request')
  }
  const fault = faultOf(era, 'JSONRPCResultResponse', message)
  if (fault || !asked) return fault ?? 'a result that answers no request'
  return era === 'modern' ? faultOfModernResult(entry) : faultOfLegacyResult(entry)
}

const DEFINITIONS = {
  legacy: { request: LEGACY_REQUESTS, notification: LEGACY_NOTIFICATIONS },
  modern: { request: MODERN_REQUESTS, notification: MODERN_NOTIFICATIONS },
  extension: { request: EXTENSION_REQUESTS, notification: EXTENSION_NOTIFICATIONS },
}

function faultOfEntry(entry) {
  const { message, kindOf, unreadable, other, era, from } = entry
  if (unreadable !== undefined) return `no JSON: ${unreadable.slice(0, 100)}`
  if (other !== undefined) return undefined // a body that is no MCP message, as in a refusal
  if (kindOf === 'answer') return era === 'modern' && from === 'client' ? 'an answer by a client' : faultOfAnswer(entry)
  if (kindOf === undefined) return 'neither request, notification nor response'
  if (era === 'modern' && kindOf === 'request' && from === 'server') return 'a request by a server'
  const { method } = message
  if (era === 'modern' && DEFINITIONS.extension[kindOf][method]) return faultOf('extension', DEFINITIONS.extension[kindOf][method], message)
  const definition = DEFINITIONS[era][kindOf][method]
  return definition ? faultOf(era, definition, message) : `method ${method} is not of this revision`
}

/** The number of messages that `party` sent, and what is wrong with them, but for what it only passed on. */
export function validate({ entries }, party, passedOn = () => false) {
  const sent = entries.filter((entry) => entry.from === party)
  const faults = []
  for (const entry of sent) {
    const fault = faultOfEntry(entry)
    if (fault && !passedOn(entry)) faults.push(`${fault}; in ${JSON.stringify(entry.message ?? entry.unreadable).slice(0, 300)}`)
  }
  return { messages: sent.length, faults }
}
