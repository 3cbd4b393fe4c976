//! What is shown to the server behind a route.

use http::header::AUTHORIZATION;

use super::Builder;
use crate::config::{
    raw,
    settings::{HttpUrl, UpstreamCredentials},
    tree::Place,
    values,
};
use crate::oauth::token::{Client, Method};
use crate::upstream::credentials;

/// What is known of callers by the time that routes are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Callers {
    /// They are asked for credentials.
    pub(super) are_asked: bool,
    /// Some of those are tokens that others have made.
    pub(super) have_tokens: bool,
}

impl Callers {
    pub(super) fn of(auth: Option<&raw::Auth>) -> Self {
        let have_tokens = auth.is_some_and(|auth| !auth.jwt.is_empty() || auth.introspection.is_some());
        Self { are_asked: auth.is_some(), have_tokens }
    }
}

impl Builder<'_> {
    /// `None` after a mistake.
    pub(super) fn credentials(
        &mut self,
        raw: &raw::Upstream,
        callers: Callers,
        at: &Place<'_>,
    ) -> Option<UpstreamCredentials> {
        let (oauth_at, pass_at) = (at.key("oauth"), at.key("pass_authorization"));
        let given: Vec<_> = [(raw.oauth.is_some(), &oauth_at), (raw.pass_authorization, &pass_at)]
            .into_iter()
            .filter_map(|(is_given, at)| is_given.then_some(at))
            .collect();
        if raw.command.is_some() {
            for at in &given {
                self.problems.error(at, "means nothing for a `command`");
            }
        }
        if given.len() > 1 {
            self.problems.error(&pass_at, "the server is shown either a token of `oauth` or the caller's, not both");
        }
        let fixed = raw.headers.keys().find(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        if let (Some(name), false) = (fixed, given.is_empty()) {
            let message = "fixed, and therefore never what `oauth` or `pass_authorization` would show";
            self.problems.error(&at.key("headers").key(name), message);
        }
        if raw.pass_authorization {
            if callers.are_asked {
                let message = "only without `auth`: a token that is good here must not go to another server";
                self.problems.error(&pass_at, message);
            }
            return Some(UpstreamCredentials::Passed);
        }
        match &raw.oauth {
            Some(oauth) => self.oauth(oauth, raw.url.as_deref(), callers, &oauth_at),
            None => Some(UpstreamCredentials::Headers),
        }
    }

    fn oauth(
        &mut self,
        raw: &raw::OAuth,
        url: Option<&str>,
        callers: Callers,
        at: &Place<'_>,
    ) -> Option<UpstreamCredentials> {
        let token_url =
            raw.token_url.as_deref().and_then(|url| self.check(values::secure_url(url), &at.key("token_url")));
        let secret = raw.client_secret.clone().and_then(|secret| self.secret(secret, &at.key("client_secret")));
        let resource = match raw.resource.as_deref() {
            Some("") => Some(None),
            Some(given) => self.check(resource(given), &at.key("resource")).map(Some),
            None => Some(url.and_then(|url| values::http_url(url).ok()).map(|url| canonical(&url))),
        };
        let (exchanges, audience) = match &raw.exchange {
            None | Some(raw::Exchange::Switch(false)) => (false, None),
            Some(raw::Exchange::Switch(true)) => (true, None),
            Some(raw::Exchange::For(service)) => (true, service.audience.clone()),
        };
        if exchanges && !callers.have_tokens {
            let message = "callers have no tokens that could be exchanged: needs `auth.jwt` or `auth.introspection`";
            self.problems.error(&at.key("exchange"), message);
        }
        let client =
            Client { id: raw.client_id.clone()?, secret: Some(secret?.reveal().into()), method: Method::default() };
        let config = credentials::Config {
            token_url: token_url?.uri().clone(),
            client,
            scope: raw.scope.clone().filter(|scope| !scope.is_empty()),
            resource: resource?,
            audience,
        };
        Some(if exchanges { UpstreamCredentials::Exchanged(config) } else { UpstreamCredentials::Own(config) })
    }
}

/// An absolute URI without a fragment (RFC 8707, 2).
fn resource(text: &str) -> Result<String, String> {
    let is_scheme = |scheme: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        scheme.bytes().all(is_part) && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
    };
    let is_text = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) && !rest.is_empty() && is_text => Ok(text.to_owned()),
        _ => Err("not an absolute URI without a fragment".to_owned()),
    }
}

/// A server's own name (MCP, "Canonical Server URI").
fn canonical(url: &HttpUrl) -> String {
    let uri = url.uri();
    let origin = format!(
        "{}://{}",
        uri.scheme_str().unwrap_or_default(),
        uri.authority().map_or("", |host| host.as_str()).to_ascii_lowercase()
    );
    format!("{origin}{}", uri.path().trim_end_matches('/'))
}
