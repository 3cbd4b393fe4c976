// What the TypeScript clients share: their arguments, the tools of the server at hand, and the lines they print.
//
// A client prints one JSON line for each check, {"check", "status", "detail"}, and exits 0 once all have run;
// whether one failed is read from the lines.

import { readFileSync } from 'node:fs'
import { isDeepStrictEqual, parseArgs } from 'node:util'

const LIMIT = 30_000
const RELATED = 'io.modelcontextprotocol/related-task'

export const { values: options } = parseArgs({
  options: {
    url: { type: 'string' }, // where the checks go
    direct: { type: 'string' }, // the same server, without a gateway before it
    tools: { type: 'string' }, // its entry in servers/tools.json
    label: { type: 'string' }, // sets this client's calls apart in the server's journal
    key: { type: 'string' }, // API key; with it tasks/list is expected to work
    'other-key': { type: 'string' }, // a key of another tenant
    native: { type: 'boolean', default: false }, // the server does tasks itself, not taskgate
    record: { type: 'string' }, // what was sent to the server, where that keeps no journal
    without: { type: 'string' }, // what can't be had here: `ask`, `questions` of any kind, or surely the `last-progress`
    era: { type: 'string', default: 'modern' }, // which one a client of both speaks
    extension: { type: 'boolean', default: false }, // whether it declares the tasks extension
    policy: { type: 'boolean', default: false }, // the route has rules for its tools: check those, and nothing else
    issuer: { type: 'string' }, // the authorization server
    control: { type: 'string' }, // where tests have it do things
    rules: { type: 'boolean', default: false }, // the route has rules for people, too
  },
})

const catalogue = readFileSync(new URL('../servers/tools.json', import.meta.url), 'utf8')
const all = JSON.parse(catalogue.replaceAll('LABEL', options.label))
const own = all[options.tools]
export const tools = { ...all[own.like], ...own }
export const { policy } = all
const missing = { ask: ['ask'], questions: ['ask', 'ask_twice', 'sample'] }[options.without] ?? []
for (const kind of missing) delete tools[kind]

/** Progress as far as it surely comes: the last may arrive after the result, and then belongs to nothing. */
export const sure = (progress) => (options.without === 'last-progress' ? progress.slice(0, tools.progress - 1) : progress)

/** The names of tools. */
export const namesOf = ({ tools: listed }) => listed.map(({ name }) => name)

/** Runs one check under a time limit and prints how it went. */
export async function check(name, body, limit = LIMIT) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${limit} ms`)), limit)
  })
  try {
    await Promise.race([body(), late])
    console.log(JSON.stringify({ check: name, status: 'passed' }))
  } catch (failure) {
    console.log(JSON.stringify({ check: name, status: 'failed', detail: causes(failure) }))
  } finally {
    clearTimeout(timer)
  }
}

/** What went wrong, and why. A client that wraps what it met says nothing of it in its own message. */
function causes(failure) {
  const said = []
  for (let cause = failure; cause !== undefined && cause !== null && said.length < 5; cause = cause.cause) said.push(cause.message ?? String(cause))
  return said.join(': ')
}

export function expect(condition, message) {
  if (!condition) throw new Error(message)
}

/** Compares JSON values; says where a difference begins. */
export function expectSame(actual, expected, what) {
  if (isDeepStrictEqual(actual, expected)) return
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)]
  const at = Math.max(0, [...left].findIndex((character, index) => character !== right[index]) - 40)
  throw new Error(`${what}: got ${left.slice(at, at + 160)} instead of ${right.slice(at, at + 160)}`)
}

/** Whether this client's slow call has begun: by the server's journal, or by the record of what was sent to the server. */
async function hasBegun() {
  if (options.record !== undefined) {
    return readFileSync(options.record, 'utf8').includes(JSON.stringify(tools.cancel.arguments))
  }
  const entries = await (await fetch(new URL('/journal', options.direct))).json()
  return entries.some(({ event, label }) => event === 'started' && label === options.label)
}

const soon = () => new Promise((resolve) => setTimeout(resolve, 20))

/** Waits for that: a call that is cancelled before it is sent never happened, which shows nothing. */
export async function begun() {
  while (!(await hasBegun())) await soon()
}

/**
 * Waits for what comes on the session's own stream, which nothing orders with the answers of other requests: the end of a
 * task may be read before its last progress. What has not come after a while never will, and the check then says so.
 */
export async function arrived(hasCome) {
  for (let times = 0; times < 500 && !hasCome(); times++) await soon()
}

/** A result without what a gateway has to add to it: the related task. */
export function withoutRelatedTask(result) {
  const { _meta: meta = {}, ...rest } = result
  const { [RELATED]: related, ...others } = meta
  return Object.keys(others).length === 0 ? rest : { ...rest, _meta: others }
}

/** A result without what belongs to the era that it came in. */
export function bare(result) {
  const { _meta: meta = {}, resultType, ...rest } = result
  const own = Object.fromEntries(Object.entries(meta).filter(([key]) => !key.startsWith('io.modelcontextprotocol/')))
  return Object.keys(own).length === 0 ? rest : { ...rest, _meta: own }
}

export function relatedTask(message) {
  return message?._meta?.[RELATED]?.taskId
}
