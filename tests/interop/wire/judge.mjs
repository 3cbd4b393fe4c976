// Judges the recordings of one run: what the gateway sent to its clients, and what it sent to the server behind it.
//
//   node judge.mjs --clients LOG [--server LOG] [--cancelled LABEL]... [--refused LABEL] [--foreign]
//
// Each message is held against the rules of its era. Prints a JSON line for each check, as the clients do. --foreign: the
// sender towards clients is not taskgate, so what only taskgate promises is not asked of it, and a known fault of the v1
// SDK is let pass.

import { parseArgs } from 'node:util'
import { inEra, passedOnFrom, readConversation } from './conversation.mjs'
import { sawClose, towardsModernClients, towardsModernServers } from './modern_rules.mjs'
import { refusalFaults, sameCalls, sawCancel, towardsClients, towardsServers } from './rules.mjs'
import { validate } from './validate.mjs'

const SHOWN = 3
const SDK_FAULT = 'JSONRPCErrorResponse: message/id must be string,integer' // its refusals carry "id": null
const { values } = parseArgs({
  options: {
    clients: { type: 'string' },
    server: { type: 'string' },
    cancelled: { type: 'string', multiple: true, default: [] },
    refused: { type: 'string' },
    foreign: { type: 'boolean', default: false },
  },
})

function print(check, breaches) {
  const line = { check, status: breaches.length === 0 ? 'passed' : 'failed' }
  if (breaches.length > 0) line.detail = `${breaches.length} times: ${breaches.slice(0, SHOWN).join(' | ')}`
  console.log(JSON.stringify(line))
}

function printValidation(check, conversation, party, passedOn) {
  const { messages, faults: all } = validate(conversation, party, passedOn)
  const faults = values.foreign ? all.filter((fault) => !fault.startsWith(SDK_FAULT)) : all
  // No message at all would be a recorder that nobody talked to.
  print(`${check}: each of ${messages} messages is valid`, messages === 0 ? ['nothing was recorded'] : faults)
}

/** The rules of each era, over what was said in it. */
function printRules(check, conversation, { legacy, modern }, passedOn) {
  for (const [era, rules] of Object.entries({ legacy, modern })) {
    const part = inEra(conversation, era)
    if (part.entries.length === 0) continue
    for (const [name, rule] of Object.entries(rules)) print(`${check}, ${era}: ${name}`, rule(part, conversation.entries, passedOn))
  }
}

const clients = readConversation(values.clients)
printValidation('to clients', clients, 'server')
if (!values.foreign) printRules('to clients', clients, { legacy: towardsClients, modern: towardsModernClients })

if (values.server) {
  const server = readConversation(values.server)
  const passedOn = passedOnFrom(clients)
  printValidation('to the server', server, 'client', passedOn)
  printRules('to the server', server, { legacy: towardsServers, modern: towardsModernServers }, passedOn)
  print('to the server: each tool call was sent once', sameCalls(clients, server, values.refused))
  if (values.refused) print('to the server: nothing that had to be refused', refusalFaults(clients, server, values.refused))
  const stopping = clients.entries.at(-1)?.at // it was not yet when the last message came
  for (const label of values.cancelled) {
    const seen = sawCancel(server, label, stopping) || sawClose(inEra(server, 'modern'), label)
    print(`to the server: the cancel of ${label} arrived`, seen ? [] : ['neither a notification nor the end of its stream'])
  }
}
