// The JSON schemas of protocol revisions 2025-11-25 and 2026-07-28 and of the tasks extension, and validators for
// their definitions.
//
// No registry package ships the schema.json of a revision as a file; the conformance package carries them inside its
// bundle, as object literals. They are cut out of the installed package and checked against digests, so that another
// version of the package can't change unnoticed what these tests accept.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { runInNewContext } from 'node:vm'
import Ajv2020 from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'

const BUNDLE = new URL('../node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url)
const START = '={$schema:`https://json-schema.org/draft/2020-12/schema`,$defs:{'
/** Each revision by definitions that only it has, with the digest of its schema. */
const REVISIONS = {
  legacy: {
    has: ['CreateTaskResult', 'InitializeResult'],
    digest: 'b32ce75512806aae3db206eff3b9851a9f17033793b21da14c2a7e8b154443be',
  },
  modern: {
    has: ['DiscoverResult', 'InputRequiredResult'],
    digest: 'b759f2b40b2798616862d86b067428bf699bcb7fbd6494904a4c977e99f0e09e',
  },
}

/** Where the object literal that starts at `start` ends; strings in it may hold braces. */
function literalEnd(source, start) {
  let depth = 0
  for (let at = start; at < source.length; at++) {
    const character = source[at]
    if (character === '{') depth++
    else if (character === '}' && --depth === 0) return at + 1
    else if (character === '`' || character === '"' || character === "'") {
      for (at++; source[at] !== character; at++) if (source[at] === '\\') at++
    }
  }
  throw new Error('the schema in the conformance package has no end')
}

function* cutOut() {
  const source = readFileSync(BUNDLE, 'utf8')
  for (let at = source.indexOf(START); at !== -1; at = source.indexOf(START, at + 1)) {
    const literal = source.slice(at + 1, literalEnd(source, at + 1))
    yield JSON.parse(runInNewContext(`JSON.stringify(${literal})`))
  }
}

const all = [...cutOut()]
const schemas = {}
for (const [era, { has, digest: expected }] of Object.entries(REVISIONS)) {
  const schema = all.find(({ $defs }) => has.every((definition) => $defs[definition]))
  if (!schema) throw new Error(`the conformance package holds no schema of the ${era} revision`)
  const digest = createHash('sha256').update(JSON.stringify(schema)).digest('hex')
  if (digest !== expected) throw new Error(`the schema of the ${era} revision has changed: digest ${digest}`)
  schemas[era] = schema
}
schemas.extension = JSON.parse(readFileSync(new URL('ext-tasks/schema.json', import.meta.url), 'utf8'))
delete schemas.extension.$id // it is known here by the name of its era

// The published schema.json says integer where schema.ts of the same revision says number; the next revision mends it.
for (const member of ['default', 'minimum', 'maximum']) schemas.legacy.$defs.NumberSchema.properties[member].type = 'number'

const ajv = new Ajv2020({ strict: false, allErrors: false })
addFormats(ajv)
for (const [era, schema] of Object.entries(schemas)) ajv.addSchema(schema, era)
const compiled = new Map()

/** What is wrong with `value` as a `definition` of the era (`legacy`, `modern` or `extension`), or undefined. */
export function faultOf(era, definition, value) {
  const name = `${era}#/$defs/${definition}`
  if (!compiled.has(name)) {
    if (!schemas[era].$defs[definition]) throw new Error(`no definition ${definition} in the ${era} schema`)
    compiled.set(name, ajv.getSchema(name))
  }
  const validate = compiled.get(name)
  if (validate(value)) return undefined
  return `${definition}: ${ajv.errorsText(validate.errors, { dataVar: 'message' })}`
}
