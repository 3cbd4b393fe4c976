// Someone who uses an SDK's OAuth client: what the SDK wants kept is kept here, and the browser is browser.mjs.

import { visit } from './browser.mjs'

const REDIRECT = 'http://127.0.0.1:9/callback' // nobody listens there: the browser stops before it

/** An OAuthClientProvider for either SDK. `log` says what happened, in its order. */
export class Person {
  redirectUrl = REDIRECT
  log = []
  #kept = {}
  #renews

  /** Without `renews` no refresh token is asked for. */
  constructor(account, { renews = true } = {}) {
    this.account = account
    this.#renews = renews
  }

  get clientMetadata() {
    return {
      client_name: 'interop',
      application_type: 'native',
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', ...(this.#renews ? ['refresh_token'] : [])],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    }
  }

  state = () => (this.#kept.state = crypto.randomUUID())
  clientInformation = () => this.#kept.client
  tokens = () => this.#kept.tokens
  codeVerifier = () => this.#kept.verifier

  discoveryState = () => this.#kept.discovery

  saveDiscoveryState(discovery) {
    this.#kept.discovery = discovery
  }

  saveClientInformation(client) {
    this.log.push('registered')
    this.#kept.client = client
  }

  saveTokens(tokens) {
    this.log.push('tokens')
    this.#kept.tokens = tokens
  }

  saveCodeVerifier(verifier) {
    this.#kept.verifier = verifier
  }

  invalidateCredentials(what) {
    this.log.push(`invalidated ${what}`)
    if (what === 'all' || what === 'client') delete this.#kept.client
    if (what === 'all' || what === 'tokens') delete this.#kept.tokens
    if (what === 'all' || what === 'discovery') delete this.#kept.discovery
  }

  async redirectToAuthorization(url) {
    this.log.push('browser')
    const { searchParams } = await visit(url, this.account, REDIRECT)
    if (searchParams.get('state') !== this.#kept.state) throw new Error('another state came back')
    this.callback = searchParams
  }

  /** Has the access token be one that no longer counts. */
  spoil() {
    const [header, , signature] = this.#kept.tokens.access_token.split('.')
    const access_token = signature === undefined ? 'ended' : [header, btoa('{"sub":"nobody"}'), signature].join('.')
    this.#kept.tokens = { ...this.#kept.tokens, access_token }
  }
}
