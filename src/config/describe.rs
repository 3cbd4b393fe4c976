//! Settings in words, for `taskgate check`. Shows no secret: no header's value, no argument, no query.

use std::{collections::BTreeSet, fmt::Display};

use super::{
    problem::quote,
    settings::{
        AuthSettings, HttpUrl, IntrospectionSettings, JwtSettings, ListenSettings, ReplicaSettings, RouteSettings,
        Settings, StoreSettings, TenantLimits, UpstreamCredentials, UpstreamSettings, UpstreamTarget, UpstreamTls,
    },
    units::show_duration,
};
use crate::auth::keys::Source;
use crate::gateway::eras;
use crate::gateway::policy::{OnLost, Pattern, Questions, Support, TaskPolicy, ToolPolicy};
use crate::gateway::pool::SessionPolicy;
use crate::gateway::rules::Rule;
use crate::hub::address::Address;

/// What a configuration means, line by line.
pub fn describe(settings: &Settings) -> String {
    let mut text = String::new();
    let listen = &settings.listen;
    line(&mut text, "listen", listen_words(listen));
    let token = if settings.admin.token.is_some() { "asks for a token" } else { "open to this machine" };
    line(&mut text, "admin", format!("{}, {token}", settings.admin.address));
    line(&mut text, "callers", callers(settings.auth.as_ref()));
    line(&mut text, "store", store(settings));
    let idle = show_duration(settings.sessions.idle);
    line(&mut text, "sessions", format!("at most {}, ended after {idle} without use", settings.sessions.max));
    line(&mut text, "seal", seal(settings));
    line(&mut text, "stop", format!("held calls get {} to finish", show_duration(settings.drain)));
    line(&mut text, "tenants", limits(&settings.tenants.default));
    for (name, tenant) in &settings.tenants.named {
        line(&mut text, &format!("  {name}"), limits(tenant));
    }
    for route in &settings.routes {
        text.push('\n');
        route_lines(&mut text, route, settings);
    }
    if !settings.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &settings.warnings {
        line(&mut text, "warning", warning);
    }
    text
}

fn line(text: &mut String, name: &str, value: impl Display) {
    text.push_str(format!("{name:<12} {value}").trim_end());
    text.push('\n');
}

fn listen_words(listen: &ListenSettings) -> String {
    let tls = if listen.tls.is_some() { " with TLS" } else { "" };
    let mut words = format!("{}{tls}, bodies up to {}", listen.address, listen.max_body);
    if let Some(url) = &listen.public_url {
        words.push_str(&format!("; clients see {url}"));
    }
    let origins = listen.allowed_origins.as_deref().map_or("none".to_owned(), list);
    let hosts = match listen.allowed_hosts.as_deref() {
        Some(hosts) => list(hosts),
        None if listen.address.ip().is_loopback() => "loopback names".to_owned(),
        None => "any".to_owned(),
    };
    words.push_str(&format!("; foreign origins: {origins}; hosts: {hosts}"));
    if !listen.trusted_proxies.is_empty() {
        words.push_str(&format!("; trusted proxies: {}", list(&listen.trusted_proxies)));
    }
    words
}

fn callers(auth: Option<&AuthSettings>) -> String {
    let Some(auth) = auth else { return "not authenticated".to_owned() };
    let mut ways = Vec::new();
    if !auth.api_keys.is_empty() {
        let tenants: BTreeSet<_> = auth.api_keys.iter().map(|key| &key.tenant).collect();
        ways.push(format!("{}, of {}", several(auth.api_keys.len(), "API key"), list(&Vec::from_iter(tenants))));
    }
    ways.extend(auth.jwt.iter().map(issuer));
    ways.extend(auth.introspection.iter().map(introspection));
    if !auth.required_scopes.is_empty() {
        ways.push(format!("tokens must have {}", auth.required_scopes.join(" ")));
    }
    format!("by {}", ways.join("; "))
}

fn issuer(jwt: &JwtSettings) -> String {
    let keys = match &jwt.source {
        Source::Discovery => "where its metadata say".to_owned(),
        Source::Url(url) => format!("at {}", HttpUrl::new(url.clone())),
        Source::File(path) => format!("in {}", path.display()),
    };
    let algorithms: Vec<_> = jwt.algorithms.iter().map(|algorithm| algorithm.as_str()).collect();
    let audiences = jwt.audiences.as_deref().map_or("the route's URL".to_owned(), list);
    let tenant = jwt.tenant_claim.as_deref().map_or("default".to_owned(), |claim| format!("claim {}", quote(claim)));
    format!(
        "JWT of {} ({}), keys {keys}, for {audiences}, tenant: {tenant}, leeway {}",
        jwt.issuer,
        list(&algorithms),
        show_duration(jwt.leeway)
    )
}

fn introspection(introspection: &IntrospectionSettings) -> String {
    let tenant = introspection.tenant_claim.as_deref();
    let tenant = tenant.map_or("default".to_owned(), |claim| format!("claim {}", quote(claim)));
    let audiences = match introspection.audiences.as_deref() {
        None => "the route's URL".to_owned(),
        Some([]) => "the route's URL or nobody named".to_owned(),
        Some(audiences) => list(audiences),
    };
    format!("introspection at {}, for {audiences}, tenant: {tenant}", introspection.url)
}

/// The ways in which callers are authenticated, in few words, for the line at start.
pub fn describe_callers(auth: Option<&AuthSettings>) -> String {
    let Some(auth) = auth else { return "not authenticated".to_owned() };
    let keys = (!auth.api_keys.is_empty()).then(|| several(auth.api_keys.len(), "API key"));
    let issuers = auth.jwt.iter().map(|jwt| format!("JWT of {}", jwt.issuer));
    let introspection =
        auth.introspection.iter().map(|introspection| format!("introspection at {}", introspection.url));
    let ways: Vec<_> = keys.into_iter().chain(issuers).chain(introspection).collect();
    format!("authenticated by {}", ways.join(", "))
}

fn store(settings: &Settings) -> String {
    let ReplicaSettings { id, lease, address } = &settings.replica;
    match &settings.store {
        StoreSettings::Memory => "memory: a restart forgets every task".to_owned(),
        StoreSettings::Disk { path } => {
            format!("disk: in {}, for one process; a restart forgets nothing", path.display())
        }
        StoreSettings::Redis(redis) => {
            let id = id.as_deref().unwrap_or("a name of its own");
            let address = address.map_or("reached by no other".to_owned(), |address| format!("reached at {address}"));
            // Without what it holds of credentials.
            let server = Address::parse(redis.url.reveal()).map(|address| address.to_string()).unwrap_or_default();
            let keys = format!("{server}, keys start with {}", redis.prefix);
            format!("redis: {keys}; replica {id}, lease {}, {address}", show_duration(*lease))
        }
    }
}

fn seal(settings: &Settings) -> String {
    match (&settings.secrets.key, settings.secrets.previous.len()) {
        (None, _) if matches!(settings.store, StoreSettings::Disk { .. }) => {
            "a key of its own in the store's folder: sessions can go on after a crash, not after a clean stop"
                .to_owned()
        }
        (None, _) => "a random key: a restart ends every session".to_owned(),
        (Some(_), 0) => match &settings.store {
            StoreSettings::Memory => "the configured key: sessions can go on after a crash, not after a clean stop",
            StoreSettings::Disk { .. } => "the configured key: sessions go on after a restart",
            StoreSettings::Redis(_) => "the configured key: sessions go on at other replicas",
        }
        .to_owned(),
        (Some(_), earlier) => format!("the configured key; {} accepted", several(earlier, "earlier key")),
    }
}

fn limits(limits: &TenantLimits) -> String {
    let mut words = format!(
        "{} tasks running, {} queued, {} kept with {} of results",
        limits.running_tasks, limits.queued_tasks, limits.kept_tasks, limits.kept_bytes
    );
    if limits.weight != 1 {
        words.push_str(&format!("; weight {}", limits.weight));
    }
    let rates = [("requests", limits.requests), ("creates", limits.creates), ("polls", limits.polls)];
    for (name, limit) in rates {
        if let Some(limit) = limit {
            words.push_str(&format!("; {name} {limit}"));
        }
    }
    words
}

fn route_lines(text: &mut String, route: &RouteSettings, settings: &Settings) {
    line(text, "route", &route.name);
    line(text, "  clients", settings.listen.url(&route.path));
    line(text, "  upstream", target(&route.upstream.target));
    if let Some(words) = shown(&route.upstream.credentials) {
        line(text, "  shows", words);
    }
    line(text, "  era", era(&route.upstream, settings.auth.is_some()));
    line(text, "  calls", calls(&route.upstream));
    line(text, "  tools", tools(&route.tools));
    for rule in &route.rules {
        line(text, "  authorize", authorized(rule));
    }
    if route.native {
        let deadline = show_duration(route.tools.otherwise.deadline);
        line(text, "  tasks", format!("the upstream's own, untouched; deadline of a call {deadline}"));
        return;
    }
    line(text, "  tasks", policy(&route.tools.otherwise));
    for rule in &route.tools.rules {
        line(text, &format!("    {}", rule.pattern), policy(&rule.policy));
    }
}

fn target(target: &UpstreamTarget) -> String {
    match target {
        UpstreamTarget::Url { url, headers, tls } => {
            let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
            let with = if names.is_empty() { String::new() } else { format!(", with {}", list(&names)) };
            format!("{url}{with}{}", certificates(tls))
        }
        UpstreamTarget::Command { argv } => {
            let (program, arguments) = argv.split_first().map_or(("", 0), |(first, rest)| (first, rest.len()));
            format!("the program {} with {}, for each session", quote(program), several(arguments, "argument"))
        }
    }
}

/// What the server is shown beside fixed headers. Names no secret, and no query.
fn shown(shown: &UpstreamCredentials) -> Option<String> {
    let (config, what) = match shown {
        UpstreamCredentials::Headers => return None,
        UpstreamCredentials::Passed => return Some("the caller's own Authorization".to_owned()),
        UpstreamCredentials::Own(config) => (config, "taskgate's own token"),
        UpstreamCredentials::Exchanged(config) => (config, "a token for each caller in exchange for theirs"),
    };
    let host = config.token_url.host().unwrap_or_default();
    let resource = config.resource.as_ref().map(|resource| format!(", for {resource}")).unwrap_or_default();
    Some(format!("{what}, made at {host} for client {}{resource}", quote(&config.client.id)))
}

fn certificates(tls: &UpstreamTls) -> &'static str {
    match (&tls.authorities, &tls.identity) {
        (None, None) => "",
        (Some(_), None) => "; trusts its own authorities",
        (None, Some(_)) => "; shows a certificate",
        (Some(_), Some(_)) => "; trusts its own authorities and shows a certificate",
    }
}

/// What is known of the server's era, and how clients without sessions share those of one that has them.
fn era(upstream: &UpstreamSettings, authenticated: bool) -> String {
    let known = match upstream.era {
        eras::Setting::Auto => "found out",
        eras::Setting::Legacy => "2025-11-25 and older",
        eras::Setting::Modern => return "2026-07-28 and newer".to_owned(),
    };
    let shared = match upstream.sessions {
        SessionPolicy::Auto if authenticated => "pooled for each caller",
        SessionPolicy::Pooled => "pooled for each caller",
        SessionPolicy::Auto | SessionPolicy::PerCall => "one for each call",
        SessionPolicy::Pinned => "one for each caller",
    };
    format!("{known}; sessions for clients that have none: {shared}")
}

fn calls(upstream: &UpstreamSettings) -> String {
    let UpstreamSettings { max_in_flight, queue, connect_timeout, .. } = upstream;
    let mut words = format!("{max_in_flight} in flight, {queue} more may wait");
    if let UpstreamTarget::Url { .. } = upstream.target {
        words.push_str(&format!("; connections open within {}", show_duration(*connect_timeout)));
    }
    words
}

fn tools(tools: &ToolPolicy) -> String {
    let allowed = match tools.allow.as_slice() {
        [] => "none".to_owned(),
        patterns if patterns.iter().any(Pattern::is_everything) => "all".to_owned(),
        patterns => list(patterns),
    };
    if tools.deny.is_empty() { allowed } else { format!("{allowed}, but not {}", list(&tools.deny)) }
}

fn authorized(rule: &Rule) -> String {
    let condition = rule.allow.as_ref().map(|allow| {
        let words: Vec<_> = allow.as_str().split_whitespace().collect();
        words.join(" ")
    });
    let scopes = (!rule.scopes.is_empty()).then(|| format!("scopes {}", list(&rule.scopes)));
    let needed: Vec<_> = condition.into_iter().chain(scopes).collect();
    format!("{}: {}", rule.pattern, needed.join(", and "))
}

fn policy(policy: &TaskPolicy) -> String {
    if policy.support == Support::Forbidden {
        return "forbidden".to_owned();
    }
    let deferred = match policy.defer {
        // At once, whatever `defer` says.
        _ if policy.support == Support::Required => String::new(),
        None => ", never deferred".to_owned(),
        Some(defer) if defer.is_zero() => ", deferred at once".to_owned(),
        Some(defer) => format!(", deferred after {}", show_duration(defer)),
    };
    let mut words = format!(
        "{}{deferred}; deadline {}, questions {}; kept {} unless asked, {} to {}; polls every {}",
        policy.support.as_str(),
        show_duration(policy.deadline),
        show_duration(policy.input_timeout),
        show_duration(policy.default_ttl.max(policy.least_ttl())),
        show_duration(policy.least_ttl()),
        show_duration(policy.max_ttl),
        show_duration(policy.poll_interval),
    );
    match policy.questions {
        Questions::Auto => {}
        Questions::InTask => words.push_str("; asks in the task"),
        Questions::InCall => words.push_str("; asks in the call"),
    }
    if policy.exclusive {
        words.push_str("; alone on its session");
    }
    if policy.on_lost == OnLost::RetryIdempotent {
        words.push_str("; run again when lost, if idempotent");
    }
    if policy.immediate_response.is_some() {
        words.push_str("; with an immediate response");
    }
    words
}

fn several(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn list(items: &[impl Display]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
