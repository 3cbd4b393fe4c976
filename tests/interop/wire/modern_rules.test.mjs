// The same for 2026-07-28: each test breaks one thing in a conversation that is in order. The first nine are gateways
// that pass the whole of the official suite.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { connect, inEra, passedOnFrom } from './conversation.mjs'
import { EXTENSION, sawClose, towardsModernClients, towardsModernServers } from './modern_rules.mjs'
import { sameCalls } from './rules.mjs'
import { validate } from './validate.mjs'

const META = 'io.modelcontextprotocol/'
const REVISION = '2026-07-28'
const ID = '6f2f8a3e-6b1c-4c59-9d0a-2f6b8c1d7e55'
const OTHER = '0d9c2b1a-77aa-4e0f-8c3d-91b2c3d4e5f6'
const START = Date.parse('2026-08-01T00:00:00Z')

const withTasks = { elicitation: {}, extensions: { [EXTENSION]: {} } }
const envelope = (capabilities = withTasks, more = {}) => ({
  [`${META}protocolVersion`]: REVISION, [`${META}clientCapabilities`]: capabilities, [`${META}clientInfo`]: { name: 'c', version: '1' }, ...more,
})
const ask = (id, method, params = {}, capabilities, more) => ({ jsonrpc: '2.0', id, method, params: { ...params, _meta: envelope(capabilities, more) } })
const answer = (id, result) => ({ jsonrpc: '2.0', id, result: { resultType: 'complete', ...result } })
const refusal = (id, code, data) => ({ jsonrpc: '2.0', id, error: { code, message: 'no', ...(data && { data }) } })
const told = (method, params) => ({ jsonrpc: '2.0', method, params })
const task = (status, more = {}) => ({
  taskId: ID, status, createdAt: new Date(START).toISOString(), lastUpdatedAt: new Date(START + 1000).toISOString(), ttlMs: 60_000, pollIntervalMs: 200, ...more,
})

/** Writes what the recorder would have written about one exchange; headers follow the body unless they are given. */
function exchange(number, { method = 'POST', status = 200, type = 'application/json', sent, got = [], headers, end = 'complete', after = 1000, opened, more = {} }) {
  const { name, uri, taskId } = sent?.params ?? {}
  const mirrored = headers ?? { 'mcp-method': sent?.method, ...((name ?? uri ?? taskId) && { 'mcp-name': name ?? uri ?? taskId }) }
  const at = START + after
  const lines = [{ exchange: number, kind: 'request', method, version: REVISION, accept: 'application/json, text/event-stream', headers: mirrored, caller: 'a', at, ...more }]
  if (sent) lines.push({ exchange: number, kind: 'message', from: 'client', message: sent, at })
  lines.push({ exchange: number, kind: 'response', status, contentType: type, opened, at })
  const via = type === 'text/event-stream' ? 'sse' : 'json'
  for (const message of got) lines.push({ exchange: number, kind: 'message', from: 'server', message, via, at })
  lines.push({ exchange: number, kind: 'end', how: end, at })
  return lines
}

const converse = (exchanges) => connect(exchanges.flatMap((one, index) => exchange(index + 1, one)))
const breaches = (exchanges, rules) => {
  const conversation = converse(exchanges)
  return Object.entries(rules).filter(([, rule]) => rule(inEra(conversation, 'modern'), conversation.entries).length > 0).map(([name]) => name)
}
const faults = (exchanges, party = 'server') => validate(converse(exchanges), party).faults
const without = (value, member) => {
  const { [member]: _, ...rest } = value
  return rest
}

const call = (more = {}) => ({ sent: ask(1, 'tools/call', { name: 'x', arguments: { label: 'L' } }), got: [answer(1, { content: [] })], ...more })
const handle = (more = {}, capabilities) => ({
  sent: ask(1, 'tools/call', { name: 'x', arguments: { label: 'L' } }, capabilities), got: [answer(1, { ...task('working'), resultType: 'task', ...more })],
})
const get = (state, more = {}) => ({ sent: ask(2, 'tasks/get', { taskId: ID }), got: [answer(2, state)], ...more })
const unknown = (method, more = {}) => ({ sent: ask(2, method, { taskId: ID, ...(method === 'tasks/update' && { inputResponses: {} }) }), got: [refusal(2, -32602)], ...more })
const cancel = (taskId = ID) => ({ sent: ask(3, 'tasks/cancel', { taskId }), got: [answer(3, {})] })
const update = (taskId = ID, inputResponses = { q1: { action: 'accept', content: {} } }) => ({ sent: ask(4, 'tasks/update', { taskId, inputResponses }), got: [answer(4, {})] })
const question = { method: 'elicitation/create', params: { message: '?', requestedSchema: { type: 'object', properties: {} } } }
const waiting = (...keys) => task('input_required', { inputRequests: Object.fromEntries(keys.map((key) => [key, question])) })
const completed = task('completed', { result: { resultType: 'complete', content: [] } })
const stream = { type: 'text/event-stream' }
const listen = (notifications, ...got) => ({
  ...stream, end: 'left', sent: ask(5, 'subscriptions/listen', { notifications }),
  got: [told('notifications/subscriptions/acknowledged', { notifications, _meta: { [`${META}subscriptionId`]: 5 } }), ...got],
})
const tagged = (params, id = 5) => ({ ...params, _meta: { [`${META}subscriptionId`]: id } })

const inOrder = [
  call(), handle(), get(waiting('q1')), update(), get(waiting('q2')), update(ID, { q2: { action: 'decline' } }), get(completed), cancel(),
  listen({ taskIds: [ID] }, told('notifications/tasks', tagged(completed))),
  { ...unknown('tasks/cancel'), sent: ask(2, 'tasks/cancel', { taskId: OTHER }) },
  { sent: ask(6, 'tasks/get', { taskId: ID }, {}), status: 400, got: [refusal(6, -32021, { requiredCapabilities: { extensions: { [EXTENSION]: {} } } })] },
  { sent: ask(7, 'tools/list', {}), headers: { 'mcp-method': 'tools/call' }, status: 400, got: [refusal(7, -32020)] },
]
test('a conversation in order breaks no rule', () => {
  assert.deepEqual(breaches(inOrder, towardsModernClients), [])
  assert.deepEqual(faults(inOrder), [])
  assert.deepEqual(faults(inOrder, 'client'), [])
})

/** By gateway: what it says, and the rules that catch it; `schema` stands for the JSON schema. */
const gateways = {
  'tasks/get without createdAt': ['schema', get(without(completed, 'createdAt'))],
  'tasks/get without lastUpdatedAt': ['schema', get(without(completed, 'lastUpdatedAt'))],
  'tasks/get without ttlMs': ['schema', get(without(completed, 'ttlMs'))],
  'legacy capability taken for the extension': ['a handle is only for a request that declares the extension', handle({}, { tasks: { requests: { tools: { call: {} } } } })],
  'Mcp-Name not checked on cancel': ['headers that disagree with the body are refused', handle(), { ...cancel(), headers: { 'mcp-method': 'tasks/cancel', 'mcp-name': OTHER } }],
  'Mcp-Name not checked on update': ['headers that disagree with the body are refused', handle(), { ...update(), headers: { 'mcp-method': 'tasks/update', 'mcp-name': OTHER } }],
  'a cancelled task overwritten by a late result': ['an ended task never changes', handle(), cancel(), get(task('cancelled')), get(completed)],
  'a cancelled task that goes on': ['a cancelled task stays cancelled', handle(), cancel(), get(task('working'))],
  'a task deleted before its ttl': ['a task is there until its ttl is over', handle(), unknown('tasks/get', { after: 59_000 })],
  'guessable ids': ['task ids are random', handle({ taskId: 'task-1' })],
  'ids that count up': ['task ids are random', handle({ taskId: '00000000-0000-4000-8000-000000000001' }), handle({ taskId: '00000000-0000-4000-8000-000000000002' })],
  'update of an unknown id acknowledged': ['only a known task is acknowledged', handle(), update(OTHER)],
  'cancel of an unknown id acknowledged': ['only a known task is acknowledged', handle(), cancel(OTHER)],
}
for (const [name, [rule, ...exchanges]] of Object.entries(gateways)) {
  test(`a broken gateway is caught: ${name}`, () => {
    if (rule === 'schema') assert.equal(faults(exchanges).length, 1)
    else assert.ok(breaches(exchanges, towardsModernClients).includes(rule))
  })
}
test('a broken gateway is caught: a cancel that never reaches the server', () => {
  const callAt = (more) => inEra(converse([call(more)]), 'modern')
  assert.ok(sawClose(callAt({ end: 'left', got: [] }), 'L'))
  assert.ok(!sawClose(callAt({}), 'L'))
  assert.ok(!sawClose(callAt({ end: 'left', got: [] }), 'another'))
})
test('a task is gone when its ttl is over, and for others it never was', () => {
  const rule = 'a task is there until its ttl is over'
  assert.ok(!breaches([handle(), unknown('tasks/get', { after: 61_000 })], towardsModernClients).includes(rule))
  assert.ok(!breaches([handle(), unknown('tasks/get', { more: { caller: 'b' } })], towardsModernClients).includes(rule))
})

const invalid = {
  'a result without its type': [{ ...call(), got: [{ jsonrpc: '2.0', id: 1, result: { content: [] } }] }],
  'a type of result that nobody knows': [call({ got: [answer(1, { resultType: 'later', content: [] })] })],
  'no caching hints on a list': [{ sent: ask(1, 'tools/list'), got: [answer(1, { tools: [] })] }],
  'a task for a list': [{ sent: ask(1, 'tools/list'), got: [answer(1, { ...task('working'), resultType: 'task' })] }],
  'input required for a list': [{ sent: ask(1, 'tools/list'), got: [answer(1, { resultType: 'input_required', requestState: 's' })] }],
  'a handle with a nested task': [handle({ taskId: undefined, task: task('working') })],
  'tasks/get with the type of a handle': [get({ ...completed, resultType: 'task' })],
  'completed without a result': [get(task('completed'))],
  'failed without an error': [get(task('failed'))],
  'an inlined result without its type': [get(task('completed', { result: { content: [] } }))],
  'input required without questions': [get(task('input_required'))],
  'a float as ttl': [get({ ...completed, ttlMs: 1.5 })],
  'an acknowledgement without its type': [{ ...cancel(), got: [{ jsonrpc: '2.0', id: 3, result: {} }] }],
  'a request by the server': [{ ...call(), ...stream, got: [{ jsonrpc: '2.0', id: 9, ...question }, answer(1, { content: [] })] }],
  'a missing capability that is not named': [{ ...call(), status: 400, got: [refusal(1, -32021)] }],
  'a notification of another revision': [{ ...call(), ...stream, got: [told('notifications/tasks/status', task('working')), answer(1, { content: [] })] }],
  'an error with an id that is null': [call({ got: [{ ...refusal(1, -32602), id: null }] })],
}
for (const [name, exchanges] of Object.entries(invalid)) {
  test(`the schema finds a breach: ${name}`, () => assert.ok(faults(exchanges).length > 0))
}
test('the schema finds a breach: a request without its envelope, and one of another revision', () => {
  const bare = { jsonrpc: '2.0', id: 1, method: 'tools/list', params: { _meta: without(envelope(), `${META}clientCapabilities`) } }
  assert.equal(faults([{ sent: bare }], 'client').length, 1)
  assert.equal(faults([{ sent: ask(1, 'ping') }], 'client').length, 1)
})

const progress = (value, progressToken = 'p') => told('notifications/progress', { progressToken, progress: value })
const log = (level) => told('notifications/message', { level, data: 'x' })
const streamed = (...got) => ({ ...call(), ...stream, sent: ask(1, 'tools/call', { name: 'x' }, withTasks, { progressToken: 'p', [`${META}logLevel`]: 'warning' }), got: [...got, answer(1, { content: [] })] })
const broken = {
  'every request has exactly one answer': [call({ got: [] })],
  'no session is opened': [call({ opened: 's' })],
  'events carry no ids': undefined,
  'GET and DELETE are refused': [{ method: 'GET', type: 'text/event-stream', headers: {} }],
  'a handle is only for a request that declares the extension': [handle({}, {})],
  'tasks are only for requests that declare the extension': [{ sent: ask(6, 'tasks/get', { taskId: ID }, {}), got: [refusal(6, -32602)] }],
  'listening to tasks is only for requests that declare the extension': [{ ...listen({ taskIds: [ID] }), sent: ask(5, 'subscriptions/listen', { notifications: { taskIds: [ID] } }, {}) }],
  'what was missing is named': [{ sent: ask(6, 'tasks/get', { taskId: ID }, {}), status: 400, got: [refusal(6, -32021, { requiredCapabilities: { tasks: {} } })] }],
  'headers that disagree with the body are refused': [{ ...call(), headers: { 'mcp-method': 'tools/list', 'mcp-name': 'x' } }],
  'a task starts as working': [handle({ status: 'input_required' })],
  'a task shows all its members': [get({ ...completed, pollIntervalMs: undefined })],
  'a task has nothing of the other dialect': [get({ ...completed, ttl: 60_000 })],
  'a handle is nothing but a handle': [handle({ inputRequests: {} })],
  'an ended task never changes': [handle(), get(completed), get(task('failed', { error: { code: 1, message: 'x' } }))],
  'a cancelled task stays cancelled': [handle(), cancel(), get(waiting('q1'))],
  'createdAt of a task is constant, its ttl never shrinks': [handle(), get({ ...completed, ttlMs: 1000 })],
  'a task is there until its ttl is over': [handle(), unknown('tasks/cancel')],
  'task ids are random': [handle({ taskId: '1' })],
  'only a known task is acknowledged': [cancel()],
  'an acknowledgement is empty': [handle(), { ...cancel(), got: [answer(3, { status: 'cancelled' })] }],
  'the key of an answered question is never used again': [handle(), get(waiting('q1', 'q2')), get(waiting('q2')), get(waiting('q1'))],
  'only what the request can do is asked for': [{ ...call(), got: [answer(1, { resultType: 'input_required', inputRequests: { r: { method: 'roots/list' } } })] }],
  'removed methods are unknown': [{ sent: ask(1, 'tasks/list'), got: [answer(1, { tasks: [] })] }],
  'errors have the status that is theirs': [call({ got: [refusal(1, -32601)] })],
  'no code of another revision': [call({ got: [refusal(1, -32002)] })],
  'progress rises': [streamed(progress(2), progress(2))],
  'progress and logs are what the request asked for': [streamed(progress(1, 'mine'))],
  'a subscription is acknowledged first, and tagged': [listen({ toolsListChanged: true }, told('notifications/tools/list_changed', tagged({}, '5')))],
  'a subscriber is told only what it asked for': [listen({ promptsListChanged: true }, told('notifications/tools/list_changed', tagged({})))],
}
test('every rule towards clients has a test', () => assert.deepEqual(Object.keys(broken), Object.keys(towardsModernClients)))
for (const [name, exchanges] of Object.entries(broken).filter(([, exchanges]) => exchanges)) {
  test(`the rule finds a breach: ${name}`, () => assert.ok(breaches(exchanges, towardsModernClients).includes(name)))
}
test('the rule finds a breach: events carry no ids', () => {
  const lines = exchange(1, { ...call(), ...stream }).map((line) => (line.from === 'server' ? { ...line, eventId: '1' } : line))
  assert.equal(towardsModernClients['events carry no ids'](connect(lines)).length, 1)
})
test('a log below the level asked for is found', () => {
  const rule = 'progress and logs are what the request asked for'
  assert.ok(breaches([streamed(log('info'))], towardsModernClients).includes(rule))
  assert.ok(!breaches([streamed(log('error'))], towardsModernClients).includes(rule))
})
test('a name that needs its encoded form is read', () => {
  const named = (header) => breaches([{ ...call(), sent: ask(1, 'tools/call', { name: 'grüße' }), headers: { 'mcp-method': 'tools/call', 'mcp-name': header } }], towardsModernClients)
  assert.deepEqual(named(`=?base64?${Buffer.from('grüße').toString('base64')}?=`), [])
  assert.deepEqual(named(`=?base64?${Buffer.from('gruss').toString('base64')}?=`), ['headers that disagree with the body are refused'])
})

const plain = {}
const asked = { sent: ask(1, 'tools/call', { name: 'x' }, plain), got: [answer(1, { resultType: 'input_required', inputRequests: { k: question }, requestState: 's' })] }
const again = (more) => ({ sent: ask(2, 'tools/call', { name: 'x', inputResponses: { k: { action: 'cancel' } }, requestState: 's', ...more }, plain), got: [answer(2, { content: [] })] })
const impolite = {
  'no word of tasks': [handle()],
  'headers say what the body says': [{ ...asked, headers: { 'mcp-method': 'tools/call' } }],
  'posts accept JSON and event streams': [{ ...asked, more: { accept: 'application/json' } }],
  'no session is named': [{ ...asked, more: { session: 's' } }],
  'a state comes back as it was given, for the same call': [asked, again({ requestState: 't' })],
  'answers are for what was asked': [asked, again({ inputResponses: { other: { action: 'cancel' } } })],
}
test('a polite client breaks no rule towards servers', () => assert.deepEqual(breaches([asked, again()], towardsModernServers), []))
test('every rule towards servers has a test', () => assert.deepEqual(Object.keys(impolite), Object.keys(towardsModernServers)))
for (const [name, exchanges] of Object.entries(impolite)) {
  test(`the rule finds a breach: ${name}`, () => assert.ok(breaches(exchanges, towardsModernServers).includes(name)))
}

test('what a client said itself is not held against the gateway', () => {
  const odd = { sent: ask(1, 'unknown/method', { x: 1 }, plain), status: 404, got: [refusal(1, -32601)] }
  const found = (clients) => validate(converse([odd]), 'client', passedOnFrom(converse(clients))).faults.length
  assert.equal(found([{ ...odd, sent: ask(7, 'unknown/method', { x: 1 }) }]), 0)
  assert.equal(found([{ ...odd, sent: ask(7, 'unknown/method', { x: 2 }) }]), 1)
})
test('a further round is no further call', () => {
  const found = (clients, server) => sameCalls(converse(clients), converse(server)).length
  assert.equal(found([asked], [asked, again()]), 0)
  assert.equal(found([asked], [asked, asked]), 1)
})
test('eras are told apart message by message', () => {
  const legacy = { ...call(), sent: { jsonrpc: '2.0', id: 1, method: 'tools/list' }, got: [{ jsonrpc: '2.0', id: 1, result: { tools: [] } }], more: { version: '2025-11-25', session: 's' } }
  assert.deepEqual(faults([legacy, call()]), [])
  assert.deepEqual(converse([legacy, call()]).entries.map(({ era }) => era), ['legacy', 'legacy', 'modern', 'modern'])
})
