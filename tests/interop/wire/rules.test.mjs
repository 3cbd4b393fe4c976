// The judge must find the faults it is there for: each test breaks one thing in a conversation that is in order.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { connect } from './conversation.mjs'
import { refusalFaults, sameCalls, sawCancel, towardsClients, towardsServers } from './rules.mjs'
import { SseReader } from './sse_reader.mjs'
import { validate } from './validate.mjs'

const RELATED = 'io.modelcontextprotocol/related-task'
const task = (status, more = {}) => ({
  taskId: 't-1', status, createdAt: '2026-01-01T00:00:00Z', lastUpdatedAt: '2026-01-01T00:00:01Z', ttl: 60000, pollInterval: 500, ...more,
})
const result = (of, more = {}) => ({ content: [{ type: 'text', text: 'done' }], _meta: { [RELATED]: { taskId: of } }, ...more })

/** Writes what the recorder would have written about one exchange. */
function exchange(number, { method = 'POST', status = 200, type = 'application/json', sent, got = [], ...more }) {
  const { version } = { version: '2025-11-25', ...more } // an undefined one stays out
  const accept = 'application/json, text/event-stream'
  const lines = [{ exchange: number, kind: 'request', method, session: 's', version, accept }]
  if (sent) lines.push({ exchange: number, kind: 'message', from: 'client', message: sent })
  lines.push({ exchange: number, kind: 'response', status, contentType: type, session: 's' })
  for (const message of got) lines.push({ exchange: number, kind: 'message', from: 'server', message })
  lines.push({ exchange: number, kind: 'end', how: 'complete' })
  return lines
}

const request = (id, method, params) => ({ jsonrpc: '2.0', id, method, params })
const answer = (id, value) => ({ jsonrpc: '2.0', id, result: value })

const opening = {
  sent: request(0, 'initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'c', version: '1' } }),
  got: [answer(0, { protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 's', version: '1' } })],
}
/** The same request, answered by a server that speaks nothing newer than `version`. */
const agreedOn = (version, capabilities = {}) => ({
  sent: request(0, 'initialize', { ...opening.sent.params, capabilities }),
  got: [answer(0, { ...opening.got[0].result, protocolVersion: version })],
})
const initialized = { status: 202, type: '', sent: { jsonrpc: '2.0', method: 'notifications/initialized' } }
const call = {
  sent: request(1, 'tools/call', { name: 'x', arguments: { label: 'L' }, task: {}, _meta: { progressToken: 'p' } }),
  got: [answer(1, { task: task('working') })],
}
const poll = (id, state) => ({ sent: request(id, 'tasks/get', { taskId: 't-1' }), got: [answer(id, state)] })
const progress = (value, token = 'p') => ({
  jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: token, progress: value, _meta: { [RELATED]: { taskId: 't-1' } } },
})
const question = (id = 'q-1') => request(id, 'elicitation/create', {
  message: '?', requestedSchema: { type: 'object', properties: {} }, _meta: { [RELATED]: { taskId: 't-1' } },
})
const stream = (...got) => ({ method: 'GET', type: 'text/event-stream', got })
const fetched = (value) => ({ sent: request(9, 'tasks/result', { taskId: 't-1' }), got: [answer(9, value)] })

const plainCall = (id) => ({ sent: request(id, 'tools/call', { name: 'x', arguments: { label: 'L' } }), got: [answer(id, { content: [] })] })

const inOrder = [opening, initialized, call, stream(progress(1), progress(2), question()), poll(2, task('completed')), fetched(result('t-1'))]
const converse = (exchanges) => connect(exchanges.flatMap((one, index) => exchange(index + 1, one)))
const breaches = (exchanges, rules) => Object.entries(rules)
  .filter(([, rule]) => rule(converse(exchanges)).length > 0)
  .map(([name]) => name)
const faults = (exchanges, party = 'server') => validate(converse(exchanges), party).faults

test('a conversation in order breaks no rule', () => {
  assert.deepEqual(breaches(inOrder, towardsClients), [])
  assert.deepEqual(faults(inOrder), [])
})

const without = (value, member) => {
  const { [member]: _, ...rest } = value
  return rest
}

const invalid = {
  'createdAt missing': [call, poll(2, without(task('completed'), 'createdAt'))],
  'lastUpdatedAt missing': [call, poll(2, without(task('completed'), 'lastUpdatedAt'))],
  'ttl missing': [call, poll(2, without(task('completed'), 'ttl'))],
  'ttl a fraction': [call, poll(2, task('completed', { ttl: 1.5 }))],
  'an unknown status': [call, poll(2, task('done'))],
  'statusMessage null': [call, poll(2, task('completed', { statusMessage: null }))],
  'a plain result where a task was due': [{ ...call, got: [answer(1, result('t-1'))] }],
  'a task without its wrapping': [{ ...call, got: [answer(1, task('working'))] }],
  'a cancel answered with nothing': [call, { sent: request(3, 'tasks/cancel', { taskId: 't-1' }), got: [answer(3, {})] }],
  'a result without content': [call, fetched({ text: 'done' })],
  'a method of another revision': [call, stream({ jsonrpc: '2.0', method: 'notifications/tasks', params: {} })],
  'an answer to nothing': [stream(answer(77, {}))],
  'an error without a message': [call, { sent: request(5, 'ping'), got: [{ jsonrpc: '2.0', id: 5, error: { code: 1 } }] }],
}
for (const [name, exchanges] of Object.entries(invalid)) {
  test(`the schema finds: ${name}`, () => assert.notDeepEqual(faults([opening, ...exchanges]), []))
}

const broken = {
  'every request has exactly one answer': [call, { sent: request(2, 'tasks/get', { taskId: 't-1' }) }],
  'the version asked for is agreed on': [agreedOn('2025-06-18')],
  'a question is asked once': [call, stream(question()), stream(question())],
  'a task starts as working': [{ ...call, got: [answer(1, { task: task('completed') })] }],
  'a task shows all its members': [call, poll(2, without(task('completed'), 'pollInterval'))],
  'an ended task never changes': [call, poll(2, task('cancelled')), poll(3, task('completed'))],
  'createdAt and ttl of a task are constant': [call, poll(2, task('completed', { ttl: 61000 }))],
  'a result names its task': [call, fetched(result('t-2'))],
  'tasks/get, list and cancel name no related task': [call, poll(2, task('completed', { _meta: { [RELATED]: { taskId: 't-1' } } }))],
  'tasks/get, list and cancel are answered as JSON': [call, { ...poll(2, task('completed')), type: 'text/event-stream' }],
  'related tasks are known to the caller': [stream(question())],
  'nothing of the stateless protocol': [{ ...plainCall(4), got: [answer(4, { content: [], resultType: 'complete' })] }],
  'progress rises': [call, stream(progress(2), progress(2))],
  'progress carries a token that the client gave': [call, stream(progress(1, 'mine'))],
  'a GET stream carries no answers': [{ sent: request(2, 'ping') }, stream(answer(2, {}))],
  'notifications and answers get 202 without a body': [{ ...initialized, status: 200 }],
}
test('every rule towards clients has a test', () => assert.deepEqual(Object.keys(broken), Object.keys(towardsClients)))
for (const [name, exchanges] of Object.entries(broken)) {
  test(`the rule finds a breach: ${name}`, () => assert.ok(breaches([opening, ...exchanges], towardsClients).includes(name)))
}

const impolite = {
  'no word of tasks': [call],
  'request ids are not used twice in a session': [plainCall(4), plainCall(4)],
  'every question is answered at most once': [
    stream(question()), { status: 202, type: '', sent: answer('q-1', { action: 'decline' }) },
    { status: 202, type: '', sent: answer('q-1', { action: 'decline' }) }],
  'posts accept JSON and event streams': undefined,
  'the negotiated version is sent': [{ ...plainCall(4), version: '2025-06-18' }],
  'nothing is declared that the version lacks': undefined,
}
test('every rule towards servers has a test', () => assert.deepEqual(Object.keys(impolite), Object.keys(towardsServers)))
for (const [name, exchanges] of Object.entries(impolite).filter(([, exchanges]) => exchanges)) {
  test(`the rule finds a breach: ${name}`, () => assert.ok(breaches([opening, ...exchanges], towardsServers).includes(name)))
}
test('the rule finds a breach: posts accept JSON and event streams', () => {
  const lines = exchange(1, opening).map((line) => (line.accept ? { ...line, accept: 'application/json' } : line))
  assert.equal(towardsServers['posts accept JSON and event streams'](connect(lines)).length, 1)
})

const declared = (version, capabilities) => breaches([agreedOn(version, capabilities), { ...initialized, version }], towardsServers)
test('the rule finds a breach: nothing is declared that the version lacks', () => {
  const name = 'nothing is declared that the version lacks'
  assert.deepEqual(declared('2025-06-18', { elicitation: {}, sampling: {} }), [])
  assert.deepEqual(declared('2025-11-25', { elicitation: { url: {} }, sampling: { tools: {} } }), [])
  assert.deepEqual(declared('2025-03-26', { elicitation: {} }), [name])
  assert.deepEqual(declared('2025-06-18', { elicitation: { url: {} } }), [name])
  assert.deepEqual(declared('2024-11-05', { sampling: { tools: {} } }), [name])
})
test('a version before the header came may be sent or not, another one may not', () => {
  const sent = (version) => breaches([agreedOn('2025-03-26'), { ...plainCall(4), version }], towardsServers)
  assert.deepEqual([undefined, '2025-03-26', '2025-11-25'].map(sent), [[], [], ['the negotiated version is sent']])
})

test('what had to be refused is found where it was accepted, and where it arrived', () => {
  const refusedCall = { ...plainCall(4), got: [{ jsonrpc: '2.0', id: 4, error: { code: -32601, message: 'no' } }] }
  const found = (clients, server) => refusalFaults(converse(clients), converse(server), 'L').length
  assert.equal(found([opening, refusedCall], [opening]), 0)
  assert.equal(found([opening, refusedCall], [opening, plainCall(4)]), 1)
  assert.equal(found([opening, plainCall(4)], [opening]), 1)
  assert.equal(found([opening], [opening]), 1)
})

test('a cancel is seen only where it was sent for that call', () => {
  const cancel = (requestId) => ({ status: 202, type: '', sent: { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } } })
  assert.ok(sawCancel(converse([opening, plainCall(4), cancel(4)]), 'L'))
  assert.ok(!sawCancel(converse([opening, plainCall(4), cancel(5)]), 'L'))
  assert.ok(!sawCancel(converse([opening, plainCall(4)]), 'L'))
})

test('a process that is ended needs no cancel, unless the gateway was about to stop', () => {
  const asked = { kind: 'message', from: 'client', session: 'pid-1', message: plainCall(4).sent, at: 1 }
  const seen = (...lines) => sawCancel(connect([asked, ...lines]), 'L', 10)
  const answered = { kind: 'message', from: 'server', session: 'pid-1', message: plainCall(4).got[0], at: 3 }
  assert.ok(seen({ kind: 'end', session: 'pid-1', at: 5 }))
  assert.ok(!seen())
  assert.ok(!seen({ kind: 'end', session: 'pid-1', at: 15 }))
  assert.ok(!seen(answered, { kind: 'end', session: 'pid-1', at: 5 }))
})

test('a tool call that is sent twice, or not at all, is found', () => {
  const found = (clients, server) => sameCalls(converse([opening, ...clients]), converse([opening, ...server])).length
  const refused = { ...plainCall(4), status: 400, got: [{ jsonrpc: '2.0', id: 4, error: { code: -32020, message: 'no' } }] }
  assert.equal(found([plainCall(4)], [plainCall(7)]), 0)
  assert.equal(found([plainCall(4)], [plainCall(7), plainCall(8)]), 1)
  assert.equal(found([plainCall(4)], []), 1)
  assert.equal(found([refused], []), 0)
  assert.equal(found([refused], [plainCall(7)]), 0)
  const turnedAway = { ...plainCall(4), status: 403, got: [{ jsonrpc: '2.0', error: { code: -32001, message: 'no' } }] }
  assert.equal(found([turnedAway, plainCall(5)], [plainCall(7)]), 0)
  assert.equal(found([turnedAway, plainCall(5)], []), 1)
})

test('an event stream is read the same however it is cut', () => {
  const bytes = Buffer.from('id: 1\r\ndata: {"a":\r\ndata: "ü🙂"}\r\n\r\n: comment\n\ndata: two\r\revent: x\ndata:\n\n')
  const read = (size) => {
    const events = []
    const reader = new SseReader((event) => events.push(event))
    for (let at = 0; at < bytes.length; at += size) reader.push(bytes.subarray(at, at + size))
    return events
  }
  const whole = read(bytes.length)
  assert.deepEqual(whole.map(({ data }) => data), ['{"a":\n"ü🙂"}', 'two', ''])
  assert.equal(whole[0].id, '1')
  for (let size = 1; size < bytes.length; size++) assert.deepEqual(read(size), whole)
})
