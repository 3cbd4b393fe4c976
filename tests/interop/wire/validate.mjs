// Holds every message of one party against the schema of revision 2025-11-25, by the method it belongs to.

import { faultOf } from './schema.mjs'

const REQUESTS = {
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

const RESULTS = {
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

const NOTIFICATIONS = {
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

function faultOfAnswer({ message, asked, exchange }) {
  if (message.error !== undefined) {
    const fault = faultOf('JSONRPCErrorResponse', message)
    // An error may go without an id only where the request could not be read.
    return fault ?? (asked || exchange?.response?.status >= 400 ? undefined : 'an error that answers no request')
  }
  const fault = faultOf('JSONRPCResultResponse', message)
  if (fault || !asked) return fault ?? 'a result that answers no request'
  const { method, params } = asked.message
  if (method === 'tools/call' && params?.task !== undefined) return faultOf('CreateTaskResult', message.result)
  if (method === 'tools/call') return faultOf('CallToolResult', message.result)
  return RESULTS[method] ? faultOf(RESULTS[method], message.result) : `a result for ${method}, which is not of this revision`
}

function faultOfEntry(entry) {
  const { message, kindOf, unreadable, other } = entry
  if (unreadable !== undefined) return `no JSON: ${unreadable.slice(0, 100)}`
  if (other !== undefined) return undefined // a body that is no MCP message, as in a refusal
  if (kindOf === 'answer') return faultOfAnswer(entry)
  const definitions = { request: REQUESTS, notification: NOTIFICATIONS }[kindOf]
  if (!definitions) return 'neither request, notification nor response'
  const definition = definitions[message.method]
  return definition ? faultOf(definition, message) : `method ${message.method} is not of this revision`
}

/** The number of messages that `party` sent, and what is wrong with them. */
export function validate({ entries }, party) {
  const sent = entries.filter((entry) => entry.from === party)
  const faults = []
  for (const entry of sent) {
    const fault = faultOfEntry(entry)
    if (fault) faults.push(`${fault}; in ${JSON.stringify(entry.message ?? entry.unreadable).slice(0, 300)}`)
  }
  return { messages: sent.length, faults }
}
