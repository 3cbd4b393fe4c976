// Splits a server-sent event stream into events, whatever way its bytes were cut.

import { StringDecoder } from 'node:string_decoder'

export class SseReader {
  #decoder = new StringDecoder('utf8')
  #rest = ''
  #event = { data: [] }
  #onEvent

  constructor(onEvent) {
    this.#onEvent = onEvent
  }

  push(chunk) {
    this.#rest += this.#decoder.write(chunk)
    // A carriage return at the very end may be half of a line end: it waits for the next chunk.
    const whole = /[^\r\n]*(?:\r\n|\n|\r(?!$))/y
    let start = 0
    for (let match = whole.exec(this.#rest); match !== null; match = whole.exec(this.#rest)) {
      this.#line(match[0].replace(/[\r\n]+$/, ''))
      start = whole.lastIndex
    }
    this.#rest = this.#rest.slice(start)
  }

  #line(line) {
    if (line === '') {
      const { id, data } = this.#event
      this.#event = { data: [] }
      if (id !== undefined || data.length > 0) this.#onEvent({ id, data: data.join('\n') })
      return
    }
    const colon = line.indexOf(':')
    const field = colon === -1 ? line : line.slice(0, colon)
    const value = colon === -1 ? '' : line.slice(colon + 1).replace(/^ /, '')
    if (field === 'data') this.#event.data.push(value)
    if (field === 'id') this.#event.id = value
  }
}
