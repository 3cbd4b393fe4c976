// A browser as far as an authorization server needs one: it follows redirects, keeps cookies, and says who sits before it.
//
//   node browser.mjs URL [STOP]    the same as a program, for clients that start one; the person is named by ACCOUNT, and
//                                  where it ended is printed

import { fileURLToPath } from 'node:url'

const STEPS = 20
const LIMIT = 10_000

/** Follows redirects from `url` until one leads to `stop`, or to a page; resolves with where that was. */
export async function visit(url, account, stop) {
  const cookies = new Map()
  let at = new URL(url)
  for (let step = 0; step < STEPS; step++) {
    const response = await fetch(at, {
      redirect: 'manual',
      headers: { 'x-account': account, cookie: [...cookies].map((pair) => pair.join('=')).join('; ') },
      signal: AbortSignal.timeout(LIMIT),
    })
    for (const line of response.headers.getSetCookie()) {
      const [pair] = line.split(';')
      const cut = pair.indexOf('=')
      cookies.set(pair.slice(0, cut), pair.slice(cut + 1))
    }
    const location = response.headers.get('location')
    if (location === null) {
      if (stop !== undefined) throw new Error(`the browser ended at ${at.pathname} with ${response.status}: ${(await response.text()).slice(0, 300)}`)
      return at
    }
    at = new URL(location, at)
    if (stop !== undefined && at.href.startsWith(String(stop))) return at
  }
  throw new Error(`more than ${STEPS} redirects`)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [url, stop] = process.argv.slice(2)
  console.log((await visit(url, process.env.ACCOUNT, stop)).href)
}
