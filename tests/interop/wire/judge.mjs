// Judges the recordings of one run: what the gateway sent to its clients, and what it sent to the server behind it.
//
//   node judge.mjs --clients LOG [--server LOG] [--cancelled LABEL]... [--refused LABEL] [--foreign]
//
// Prints a JSON line for each check, as the clients do. --foreign: the sender towards clients is not taskgate, so
// what only taskgate promises is not asked of it, and a known fault of the v1 SDK is let pass.

import { parseArgs } from 'node:util'
import { readConversation } from './conversation.mjs'
import { refusalFaults, sawCancel, toolCalls, towardsClients, towardsServers } from './rules.mjs'
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

function printValidation(check, conversation, party) {
  const { messages, faults: all } = validate(conversation, party)
  const faults = values.foreign ? all.filter((fault) => !fault.startsWith(SDK_FAULT)) : all
  // No message at all would be a recorder that nobody talked to.
  print(`${check}: each of ${messages} messages is valid`, messages === 0 ? ['nothing was recorded'] : faults)
}

function sameCalls(clients, server) {
  const [asked, sent] = [clients, server].map((side) => toolCalls(side, values.refused))
  return [...new Set([...asked.keys(), ...sent.keys()])]
    .filter((call) => asked.get(call) !== sent.get(call))
    .map((call) => `${call.slice(0, 150)} asked for ${asked.get(call) ?? 0} times, sent ${sent.get(call) ?? 0} times`)
}

const clients = readConversation(values.clients)
printValidation('to clients', clients, 'server')
if (!values.foreign) for (const [name, rule] of Object.entries(towardsClients)) print(`to clients: ${name}`, rule(clients))

if (values.server) {
  const server = readConversation(values.server)
  printValidation('to the server', server, 'client')
  for (const [name, rule] of Object.entries(towardsServers)) print(`to the server: ${name}`, rule(server))
  print('to the server: each tool call was sent once', sameCalls(clients, server))
  if (values.refused) print('to the server: nothing that had to be refused', refusalFaults(clients, server, values.refused))
  for (const label of values.cancelled) {
    print(`to the server: the cancel of ${label} arrived`, sawCancel(server, label) ? [] : ['no notifications/cancelled for it'])
  }
}
