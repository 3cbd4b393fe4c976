// Stands between a gateway and a stdio server and writes down every line that passes, like recorder.mjs does for HTTP.
//
//   node tap.mjs LOG COMMAND ARGUMENT...

import { spawn } from 'node:child_process'
import { appendFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

const [log, command, ...rest] = process.argv.slice(2)
const child = spawn(command, rest, { stdio: ['pipe', 'pipe', 'inherit'] })
const session = `pid-${process.pid}`

function relay(from, source, sink) {
  const lines = createInterface({ input: source, crlfDelay: Infinity })
  lines.on('line', (line) => {
    try {
      appendFileSync(log, `${JSON.stringify({ kind: 'message', from, session, message: JSON.parse(line), at: Date.now() })}\n`)
    } catch {
      appendFileSync(log, `${JSON.stringify({ kind: 'message', from, session, unreadable: line.slice(0, 1000) })}\n`)
    }
    sink.write(`${line}\n`)
  })
  lines.on('close', () => {
    if (from === 'client') appendFileSync(log, `${JSON.stringify({ kind: 'end', session, at: Date.now() })}\n`)
    sink.end()
  })
}

relay('client', process.stdin, child.stdin)
relay('server', child.stdout, process.stdout)
child.stdin.on('error', () => {}) // the child's end is told by its exit
child.on('exit', (code) => process.exit(code ?? 1))
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => child.kill(signal))
