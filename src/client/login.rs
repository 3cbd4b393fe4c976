//! Logging in: the specification's client, from a 401 to a token (2025-11-25 and 2026-07-28 authorization). It is a source of
//! credentials like any other, so whatever message was refused is the one that is sent again.
//!
//! The user is reached through a function that shows a URL; nothing here knows of terminals.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderValue, StatusCode, Uri};
use tokio::sync::Mutex;

use crate::clock::{Clock, Timestamp};
use crate::oauth::authorization::{self, Expected};
use crate::oauth::challenge::{self, Challenge};
use crate::oauth::discovery::{self, BadUrl, ResourceMetadata, ServerMetadata};
use crate::oauth::fetch::Fetcher;
use crate::oauth::redirect::{self, Redirect};
use crate::oauth::secret::{Secret, SubjectToken};
use crate::oauth::token::{self, Client, Grant, Method, Refusal, Request, Tokens};
use crate::oauth::{pkce, registration};
use crate::upstream;
use crate::upstream::credentials::{Credentials, Refused};

use super::tokens::{self, Login as Kept, TokenFile};

/// A token that ends so soon is not shown any more, unless it was got less than this ago: another would end as soon.
const MARGIN: Duration = Duration::from_secs(10);
/// A token without an end is not refreshed so soon after it was got.
const FRESH: Duration = Duration::from_secs(60);
/// How often more scopes are asked for.
const STEP_UPS: u32 = 2;

/// What the user says about a login.
#[derive(Debug, Clone)]
pub struct Options {
    /// The MCP endpoint.
    pub url: Uri,
    /// A client that is registered already, with its password if it has one.
    pub client: Option<(String, Option<Secret>)>,
    /// The URL of the client's metadata document, which is its id where servers take such.
    pub metadata_url: Option<String>,
    /// The scopes to ask for, separated by spaces; else what the server asks for.
    pub scope: Option<String>,
    /// The file that keeps tokens.
    pub tokens: PathBuf,
}

/// Shows the user the URL at which to agree.
pub type Show = Box<dyn Fn(&str) + Send + Sync>;

/// Why a login failed. Says nothing of what was sent or given.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Tokens are not sent to such a server.
    #[error("tokens can't be sent to this URL: {0}")]
    Url(#[from] BadUrl),
    /// The URL of the client's metadata can't be an id.
    #[error("the URL of the client's metadata must be https and have a path")]
    MetadataUrl,
    /// The tokens can't be read.
    #[error("the stored tokens can't be used")]
    Tokens(#[from] tokens::Error),
    /// What the server says about itself, or its authorization server, can't be had or used.
    #[error("the authorization server can't be found")]
    Discovery(#[from] discovery::Error),
    /// The client belongs to another authorization server than the one that is named now (2026-07-28, "Authorization Server
    /// Binding").
    #[error(
        "the server names another authorization server than the one that this client id was used with; if that is right, \
         remove the login from the file of tokens"
    )]
    OtherServer,
    /// The authorization server lacks something that is needed.
    #[error("the authorization server offers no {0}")]
    Lacking(&'static str),
    /// There is no way to come by a client id.
    #[error(
        "the authorization server registers no clients by itself: give --client-id, or --client-metadata-url where it takes one"
    )]
    NoClient,
    /// It did not register this client.
    #[error(transparent)]
    Registration(#[from] registration::Error),
    /// The browser did not come back.
    #[error(transparent)]
    Redirect(#[from] redirect::Error),
    /// The answer was not good.
    #[error(transparent)]
    Authorization(#[from] authorization::Error),
    /// There is no token.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// A token that was given just now is refused.
    #[error("the server refuses the token that its authorization server has just given")]
    StillRefused,
    /// No secrets can be made.
    #[error(transparent)]
    NoRandomness(#[from] pkce::NoRandomness),
}

impl From<Error> for upstream::Error {
    fn from(error: Error) -> Self {
        Self::Credentials(Box::new(error))
    }
}

/// The login at one server.
pub struct Login {
    options: Options,
    show: Show,
    file: TokenFile,
    fetcher: Fetcher,
    clock: Clock,
    /// Held while somebody logs in: everybody else waits for what comes of it.
    state: Mutex<State>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("url", &self.options.url).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// The file was looked at.
    is_read: bool,
    current: Option<Kept>,
    /// When it was got, if in this run.
    got_at: Option<Timestamp>,
    step_ups: u32,
}

/// A resource and its authorization server.
struct Found {
    resource: ResourceMetadata,
    server: ServerMetadata,
}

impl Login {
    /// Logs in when the server asks for it.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::MetadataUrl`].
    pub fn new(options: Options, show: Show) -> Result<Self, Error> {
        discovery::secure(&options.url.to_string(), None)?;
        if let Some(url) = &options.metadata_url {
            let url = discovery::secure(url, None).map_err(|_| Error::MetadataUrl)?;
            // 2026-07-28 client registration, "Implementation Requirements".
            if url.scheme_str() != Some("https") || url.path() == "/" {
                return Err(Error::MetadataUrl);
            }
        }
        let file = TokenFile::new(options.tokens.clone());
        Ok(Self { options, show, file, fetcher: Fetcher::new(), clock: Clock::system(), state: Mutex::default() })
    }

    /// Those that may be used for this call: the same URL, and the same client where one was given.
    fn is_ours(&self, kept: &Kept) -> bool {
        let is_client = match (&self.options.client, &self.options.metadata_url) {
            (Some((id, _)), _) => kept.client.id == *id,
            (None, Some(url)) => kept.client.id == *url || kept.registered_port.is_some(),
            (None, None) => kept.registered_port.is_some(),
        };
        kept.url == self.options.url.to_string() && is_client
    }

    /// The login in the file, the newest if there are several.
    fn kept(&self) -> Result<Option<Kept>, Error> {
        Ok(self.file.read()?.into_iter().rev().find(|kept| self.is_ours(kept)).map(|kept| self.with_secret(kept)))
    }

    fn with_secret(&self, mut kept: Kept) -> Kept {
        if let Some((_, secret)) = &self.options.client {
            kept.client.secret.clone_from(secret);
        }
        kept
    }

    /// What would be shown now.
    fn authorization_of(&self, state: &State) -> Option<HeaderValue> {
        let current = state.current.as_ref()?;
        let is_good = current.expires.is_none_or(|expires| self.clock.now().plus(MARGIN) < expires);
        (is_good || self.is_new(state)).then(|| current.access.to_bearer()).flatten()
    }

    /// Whether the token was got just now.
    fn is_new(&self, state: &State) -> bool {
        state.got_at.is_some_and(|got_at| self.clock.now().since(got_at) < MARGIN)
    }

    /// Whether the token that was refused should have been good.
    fn is_fresh(&self, state: &State) -> bool {
        let now = self.clock.now();
        match (state.got_at, state.current.as_ref().and_then(|current| current.expires)) {
            (None, _) => false,
            (Some(_), Some(expires)) => now.plus(MARGIN) < expires || self.is_new(state),
            (Some(got_at), None) => now.since(got_at) < FRESH,
        }
    }

    /// A 401: with what another program has got meanwhile, else by the refresh token, else by the user.
    async fn renew(&self, state: &mut State, challenge: &Challenge) -> Result<bool, Error> {
        if self.is_fresh(state) {
            return Err(Error::StillRefused);
        }
        let refused = state.current.take();
        let newer = self.kept()?;
        if newer.as_ref().map(|kept| &kept.access) != refused.as_ref().map(|kept| &kept.access) {
            state.current.clone_from(&newer);
            if self.authorization_of(state).is_some() {
                return Ok(true);
            }
        }
        let kept = newer.or(refused);
        let found = self.found(challenge, kept.as_ref()).await?;
        let renewed = match &kept {
            Some(kept) => self.refreshed(&found, kept).await?,
            None => None,
        };
        let login = match renewed {
            Some(login) => login,
            None => {
                let wanted = self.options.scope.clone().or_else(|| first_scope(challenge, &found.resource));
                self.agreed(&found, kept.as_ref(), wanted).await?
            }
        };
        self.take(state, login);
        Ok(true)
    }

    /// A 403 that names scopes: with those and all that were asked for before (2026-07-28, "Step-Up Authorization Flow").
    async fn step_up(&self, state: &mut State, challenge: &Challenge) -> Result<bool, Error> {
        let is_about_scopes = challenge.parameter("error") == Some("insufficient_scope");
        let Some(needed) = challenge.parameter("scope").filter(|_| is_about_scopes) else { return Ok(false) };
        let had = state.current.as_ref().and_then(|current| current.scope.clone()).unwrap_or_default();
        let wanted = union(&had, needed);
        // Asking for the same again would end in the same.
        if state.step_ups == STEP_UPS || (state.step_ups > 0 && wanted == union(&had, "")) {
            return Ok(false);
        }
        state.step_ups += 1;
        let kept = state.current.clone();
        let found = self.found(challenge, kept.as_ref()).await?;
        let login = self.agreed(&found, kept.as_ref(), Some(wanted)).await?;
        self.take(state, login);
        Ok(true)
    }

    fn take(&self, state: &mut State, login: Kept) {
        if let Err(error) = self.file.keep(&login) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, cause, "the login can't be kept for the next call");
        }
        state.got_at = Some(self.clock.now());
        state.current = Some(login);
    }

    /// The resource's metadata and that of an authorization server of its: the one that was used before, else the first.
    async fn found(&self, challenge: &Challenge, kept: Option<&Kept>) -> Result<Found, Error> {
        let named = challenge.parameter("resource_metadata");
        let resource = discovery::resource_metadata(&self.fetcher, &self.options.url, named).await?;
        let before = kept.map(|kept| &kept.issuer).filter(|issuer| resource.authorization_servers.contains(issuer));
        if self.options.client.is_some() && before.is_none() && kept.is_some() {
            return Err(Error::OtherServer);
        }
        let issuer = before.or(resource.authorization_servers.first()).ok_or(Error::Lacking("issuer"))?;
        let server = self.server_of(issuer).await?;
        Ok(Found { resource, server })
    }

    /// An authorization server's metadata. No server elsewhere may send this client, the user's browser and tokens around on
    /// their own machine.
    async fn server_of(&self, issuer: &str) -> Result<ServerMetadata, Error> {
        discovery::secure(issuer, Some(&self.options.url))
            .map_err(|why| discovery::Error::Url { what: "the issuer", why })?;
        Ok(discovery::server_metadata(&self.fetcher, issuer).await?)
    }

    /// A new token by the refresh token; `None` where there is none that is still good.
    async fn refreshed(&self, found: &Found, kept: &Kept) -> Result<Option<Kept>, Error> {
        // Both belong to whom they were got from, for what they were got for.
        let is_theirs = kept.issuer == found.server.issuer && kept.resource == found.resource.resource;
        let Some(refresh) = kept.refresh.as_ref().filter(|_| is_theirs) else { return Ok(None) };
        let endpoint = found.server.token_endpoint.as_ref().ok_or(Error::Lacking("token endpoint"))?;
        let request = Request { grant: Grant::Refresh(refresh), scope: None, resource: Some(&kept.resource) };
        match token::request(&self.fetcher, endpoint, &kept.client, &request).await {
            Ok(tokens) => Ok(Some(self.login(kept.clone(), tokens))),
            Err(token::Error::Refused(
                Refusal::InvalidGrant | Refusal::InvalidClient | Refusal::UnauthorizedClient,
            )) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A login with new tokens in it. A server that gives no new refresh token leaves the old one good (RFC 6749, 6).
    fn login(&self, login: Kept, tokens: Tokens) -> Kept {
        Kept {
            access: tokens.access,
            expires: tokens.expires_in.map(|life| self.clock.now().plus(life)),
            refresh: tokens.refresh.or(login.refresh),
            scope: login.scope.or(tokens.scope),
            ..login
        }
    }

    /// A token by the user's agreement.
    async fn agreed(&self, found: &Found, kept: Option<&Kept>, wanted: Option<String>) -> Result<Kept, Error> {
        let Found { resource, server } = found;
        let authorize = server.authorization_endpoint.as_ref().ok_or(Error::Lacking("authorization endpoint"))?;
        let endpoint = server.token_endpoint.as_ref().ok_or(Error::Lacking("token endpoint"))?;
        // MCP, "Authorization Code Protection": no PKCE, no login.
        let methods = server.code_challenge_methods_supported.as_deref().unwrap_or_default();
        if !methods.iter().any(|method| method == "S256") {
            return Err(Error::Lacking("PKCE by S256"));
        }
        let registered = kept.filter(|kept| kept.issuer == server.issuer && kept.registered_port.is_some());
        let redirect = Redirect::bind(registered.and_then(|kept| kept.registered_port)).await?;
        let scope = wanted.map(|scope| with_offline_access(&scope, server));
        let (client, registered_port) = self.client(server, registered, &redirect, scope.as_deref()).await?;
        let (state, verifier) = (pkce::random()?, pkce::random()?);
        let (redirect_uri, code_challenge) = (redirect.uri(), pkce::challenge(&verifier));
        let request = authorization::Request {
            client_id: &client.id,
            redirect_uri: &redirect_uri,
            code_challenge: &code_challenge,
            state: &state,
            resource: &resource.resource,
            scope: scope.as_deref(),
        };
        (self.show)(&request.url(authorize));
        let expected =
            Expected { state: &state, issuer: &server.issuer, names_itself: server.names_itself_in_responses };
        let code = redirect.answer().await?.code(&expected)?;
        let grant = Grant::Code { code: &code, redirect_uri: &redirect_uri, verifier: &verifier };
        let request = Request { grant, scope: None, resource: Some(&resource.resource) };
        let tokens = token::request(&self.fetcher, endpoint, &client, &request).await?;
        let login = Kept {
            url: self.options.url.to_string(),
            issuer: server.issuer.clone(),
            resource: resource.resource.clone(),
            client,
            registered_port,
            access: tokens.access.clone(),
            expires: None,
            refresh: None,
            scope,
        };
        Ok(self.login(login, tokens))
    }

    /// The client, in the order of 2026-07-28 client registration: known beforehand, by its metadata, by registering. With
    /// the port that it is registered for.
    async fn client(
        &self,
        server: &ServerMetadata,
        registered: Option<&Kept>,
        redirect: &Redirect,
        scope: Option<&str>,
    ) -> Result<(Client, Option<u16>), Error> {
        if let Some((id, secret)) = &self.options.client {
            let method = Method::among(server.token_endpoint_auth_methods_supported.as_deref());
            return Ok((Client { id: id.clone(), secret: secret.clone(), method }, None));
        }
        if let Some(url) = self.options.metadata_url.as_ref().filter(|_| server.takes_client_id_metadata) {
            return Ok((Client { id: url.clone(), secret: None, method: Method::default() }, None));
        }
        let port = Some(redirect.port());
        if let Some(kept) = registered.filter(|kept| kept.registered_port == port) {
            return Ok((kept.client.clone(), port));
        }
        let endpoint = server.registration_endpoint.as_ref().ok_or(Error::NoClient)?;
        let client = registration::register(&self.fetcher, endpoint, &redirect.uri(), scope).await?;
        Ok((client, port))
    }
}

#[async_trait]
impl Credentials for Login {
    async fn authorization(&self, _: Option<&Arc<SubjectToken>>) -> Result<Option<HeaderValue>, upstream::Error> {
        let mut state = self.state.lock().await;
        if !state.is_read {
            state.current = self.kept()?;
            state.is_read = true;
        }
        Ok(self.authorization_of(&state))
    }

    async fn refused(&self, refused: &Refused<'_>) -> Result<bool, upstream::Error> {
        let mut state = self.state.lock().await;
        // Somebody else has logged in while this one waited.
        let now = self.authorization_of(&state);
        if now.is_some() && now.as_ref() != refused.shown {
            return Ok(true);
        }
        let challenge = challenge::bearer(&refused.denied.challenges).unwrap_or_default();
        if refused.denied.status == StatusCode::FORBIDDEN {
            return Ok(self.step_up(&mut state, &challenge).await?);
        }
        Ok(self.renew(&mut state, &challenge).await?)
    }
}

/// What to ask for at first (MCP, "Scope Selection Strategy").
fn first_scope(challenge: &Challenge, resource: &ResourceMetadata) -> Option<String> {
    let challenged = challenge.parameter("scope").map(str::to_owned);
    challenged
        .or_else(|| resource.scopes_supported.as_ref().map(|scopes| scopes.join(" ")))
        .filter(|scope| !scope.is_empty())
}

/// Asks for a refresh token where that takes a scope (2026-07-28, "Refresh Tokens").
fn with_offline_access(scope: &str, server: &ServerMetadata) -> String {
    let is_known = server.scopes_supported.as_ref().is_some_and(|known| known.iter().any(|known| known == OFFLINE));
    if is_known { union(scope, OFFLINE) } else { scope.to_owned() }
}

const OFFLINE: &str = "offline_access";

/// Each scope of both, once.
fn union(left: &str, right: &str) -> String {
    let mut scopes: Vec<&str> = Vec::new();
    for scope in left.split_ascii_whitespace().chain(right.split_ascii_whitespace()) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes.join(" ")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_elsewhere_sends_nobody_to_this_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let url = "https://mcp.example/mcp".parse().unwrap();
        let options = Options { url, client: None, metadata_url: None, scope: None, tokens: PathBuf::new() };
        let login = Login::new(options, Box::new(|_| {})).unwrap();
        tokio::select! {
            biased;
            _ = listener.accept() => panic!("this machine was asked"),
            refused = login.server_of(&issuer) => {
                assert!(matches!(refused, Err(Error::Discovery(discovery::Error::Url { .. }))), "{:?}", refused.err());
            }
        }
        assert!(listener.accept().now_or_never().is_none());
    }
}
