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
  },
})

const catalogue = readFileSync(new URL('../servers/tools.json', import.meta.url), 'utf8')
export const tools = JSON.parse(catalogue.replaceAll('LABEL', options.label))[options.tools]

/** Runs one check under a time limit and prints how it went. */
export async function check(name, body) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${LIMIT} ms`)), LIMIT)
  })
  try {
    await Promise.race([body(), late])
    console.log(JSON.stringify({ check: name, status: 'passed' }))
  } catch (failure) {
    console.log(JSON.stringify({ check: name, status: 'failed', detail: failure.message ?? String(failure) }))
  } finally {
    clearTimeout(timer)
  }
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

/** A result without what a gateway has to add to it: the related task. */
export function withoutRelatedTask(result) {
  const { _meta: meta = {}, ...rest } = result
  const { [RELATED]: related, ...others } = meta
  return Object.keys(others).length === 0 ? rest : { ...rest, _meta: others }
}

export function relatedTask(message) {
  return message?._meta?.[RELATED]?.taskId
}
