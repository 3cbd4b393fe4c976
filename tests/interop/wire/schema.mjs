// The JSON schema of protocol revision 2025-11-25, and validators for its definitions.
//
// No registry package ships schema.json as a file; the conformance package carries it inside its bundle, as an
// object literal. It is cut out of the installed package and checked against a digest, so that another
// version of the package can't change unnoticed what these tests accept.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { runInNewContext } from 'node:vm'
import Ajv2020 from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'

const BUNDLE = new URL('../node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url)
const START = '={$schema:`https://json-schema.org/draft/2020-12/schema`,$defs:{'
const DIGEST = 'b32ce75512806aae3db206eff3b9851a9f17033793b21da14c2a7e8b154443be'

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

function cutOut() {
  const source = readFileSync(BUNDLE, 'utf8')
  for (let at = source.indexOf(START); at !== -1; at = source.indexOf(START, at + 1)) {
    const literal = source.slice(at + 1, literalEnd(source, at + 1))
    const schema = JSON.parse(runInNewContext(`JSON.stringify(${literal})`))
    // Only this revision has both tasks and the handshake in its core.
    if (schema.$defs.CreateTaskResult && schema.$defs.InitializeResult) return schema
  }
  throw new Error('the conformance package holds no schema of 2025-11-25')
}

export const schema = cutOut()
export const digest = createHash('sha256').update(JSON.stringify(schema)).digest('hex')
if (digest !== DIGEST) throw new Error(`the schema of 2025-11-25 has changed: digest ${digest}`)

// The published schema.json says integer where schema.ts of the same revision says number; the next revision mends it.
for (const member of ['default', 'minimum', 'maximum']) schema.$defs.NumberSchema.properties[member].type = 'number'

const ajv = new Ajv2020({ strict: false, allErrors: false })
addFormats(ajv)
ajv.addSchema(schema, 'mcp')
const compiled = new Map()

/** What is wrong with `value` as a `definition`, or undefined. */
export function faultOf(definition, value) {
  if (!compiled.has(definition)) {
    if (!schema.$defs[definition]) throw new Error(`no definition ${definition}`)
    compiled.set(definition, ajv.getSchema(`mcp#/$defs/${definition}`))
  }
  const validate = compiled.get(definition)
  if (validate(value)) return undefined
  return `${definition}: ${ajv.errorsText(validate.errors, { dataVar: 'message' })}`
}
