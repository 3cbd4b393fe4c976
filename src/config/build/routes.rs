//! Routes: the server behind each, its tools, and how their calls become tasks.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use http::{HeaderName, HeaderValue};

use super::{Builder, Callers, count};
use crate::config::{
    problem::Problems,
    raw,
    settings::{RouteSettings, UpstreamSettings, UpstreamTarget},
    tree::Place,
    units::{self, show_duration},
    values,
};
use crate::gateway::eras;
use crate::gateway::policy::{OnLost, Pattern, Questions, Support, TaskPolicy, ToolPolicy, ToolRule};
use crate::gateway::pool::SessionPolicy;

impl Builder<'_> {
    pub(super) fn routes(&mut self, raw: Vec<raw::Route>, callers: Callers, at: &Place<'_>) -> Vec<RouteSettings> {
        let (mut names, mut paths) = (HashMap::new(), HashMap::new());
        let mut routes = Vec::new();
        for (index, route) in raw.into_iter().enumerate() {
            let at = at.item(index);
            for (key, text, seen) in [("name", &route.name, &mut names), ("path", &route.path, &mut paths)] {
                let Some(text) = text else { continue };
                if let Some(first) = seen.insert(text.clone(), index) {
                    self.problems.error(&at.key(key), format!("the same as `routes[{first}].{key}`"));
                }
            }
            if !callers.are_asked {
                self.warn_shared(&route, &at.key("upstream").key("sessions"));
            }
            routes.extend(self.route(route, callers, &at));
        }
        routes
    }

    /// Says so where callers who can't be told apart share what a server remembers of each.
    fn warn_shared(&mut self, raw: &raw::Route, at: &Place<'_>) {
        // Whoever shows another token is another caller.
        let upstream = raw.upstream.as_ref().filter(|upstream| !upstream.pass_authorization);
        let sessions = upstream.map(|upstream| upstream.sessions);
        let shared = match sessions {
            Some(raw::UpstreamSessions::Pooled) => "one after the other",
            Some(raw::UpstreamSessions::Pinned) => "at the same time",
            Some(raw::UpstreamSessions::Auto | raw::UpstreamSessions::PerCall) | None => return,
        };
        let message = format!(
            "unsafe without `auth`: callers can't be told apart, so all clients of 2026-07-28 use the same sessions of the \
             server, {shared}, and what it remembers of one reaches the others"
        );
        self.problems.warn(at, message);
    }

    fn route(&mut self, raw: raw::Route, callers: Callers, at: &Place<'_>) -> Option<RouteSettings> {
        let name = raw.name.and_then(|name| self.check(values::label(&name), &at.key("name")));
        let path = raw.path.and_then(|path| self.check(values::route_path(&path), &at.key("path")));
        let upstream = raw.upstream.and_then(|upstream| self.upstream(upstream, callers, &at.key("upstream")));
        let tools_at = at.key("tools");
        let allow = self.each(&raw.tools.allow, &tools_at.key("allow"), Pattern::parse);
        let deny = self.each(&raw.tools.deny, &tools_at.key("deny"), Pattern::parse);
        let rules = self.authorize(raw.authorize, &at.key("authorize"));
        let tasks_at = at.key("tasks");
        let native = matches!(raw.tasks.mode, raw::Mode::Native);
        if native {
            self.warn_unused(&tasks_at);
        }
        let (otherwise, of_tools) = self.tasks(raw.tasks, &tasks_at)?;
        let tools = ToolPolicy { allow, deny, rules: of_tools, otherwise };
        Some(RouteSettings { name: name?, path: path?, upstream: upstream?, tools, rules, native })
    }

    /// Says which keys mean nothing where the server makes the tasks.
    fn warn_unused(&mut self, tasks: &Place<'_>) {
        const OURS: [&str; 9] = [
            "support",
            "defer",
            "questions",
            "input_timeout",
            "ttl",
            "retention",
            "poll_interval",
            "on_lost",
            "immediate_response",
        ];
        for at in OURS.map(|key| tasks.key(key)).iter().filter(|at| at.is_given()) {
            self.problems.warn(at, "means nothing with `mode: native`: the server makes the tasks");
        }
    }

    /// Says where nothing is ever run again, whatever the file says.
    pub(super) fn warn_forgotten(&mut self, routes: &[raw::Route], at: &Place<'_>) {
        let warn = |problems: &mut Problems, is_given: bool, at: &Place<'_>| {
            if is_given {
                problems.warn(&at.key("on_lost"), "means nothing with `store.kind: memory`: tasks go with the process");
            }
        };
        for (index, route) in
            routes.iter().enumerate().filter(|(_, route)| !matches!(route.tasks.mode, raw::Mode::Native))
        {
            let at = at.item(index).key("tasks");
            warn(self.problems, matches!(route.tasks.on_lost, raw::OnLost::RetryIdempotent), &at);
            for (index, tool) in route.tasks.tools.iter().enumerate() {
                let is_given = matches!(tool.on_lost, Some(raw::OnLost::RetryIdempotent));
                warn(self.problems, is_given, &at.key("tools").item(index));
            }
        }
    }

    fn upstream(&mut self, raw: raw::Upstream, callers: Callers, at: &Place<'_>) -> Option<UpstreamSettings> {
        let given: Vec<_> = ["url", "command", "sse"].into_iter().filter(|key| at.key(key).is_given()).collect();
        // From the command line there is no file to look at.
        let count_given = if at.is_given() { given.len() } else { 1 };
        match (count_given, given.as_slice()) {
            (0, _) => self.problems.error(at, "needs one of `url`, `command` and `sse`"),
            (2.., [.., last]) => self.problems.error(&at.key(last), "only one of `url`, `command` and `sse`"),
            _ => {}
        }
        let headers_at = at.key("headers");
        let timeout_at = at.key("connect_timeout");
        if raw.command.is_some() {
            let tls_at = at.key("tls");
            for at in [&headers_at, &timeout_at, &tls_at].into_iter().filter(|at| at.is_given()) {
                self.problems.error(at, "means nothing for a `command`");
            }
        }
        let credentials = self.credentials(&raw, callers, at);
        let headers = self.headers(raw.headers, &headers_at);
        let connect_timeout = self.positive(&raw.connect_timeout, &timeout_at);
        let target = match (raw.url, raw.command) {
            (Some(url), _) => {
                let url = self.check(values::http_url(&url), &at.key("url"))?;
                let tls = self.upstream_tls(raw.tls, &url, &at.key("tls"));
                UpstreamTarget::Url { url, headers, tls }
            }
            (None, Some(argv)) => {
                self.check(values::argv(&argv), &at.key("command"))?;
                UpstreamTarget::Command { argv }
            }
            (None, None) => return None,
        };
        Some(UpstreamSettings {
            target,
            max_in_flight: count(raw.max_in_flight),
            connect_timeout: connect_timeout?,
            queue: count(raw.queue),
            era: era(raw.era),
            sessions: sessions(raw.sessions),
            credentials: credentials?,
        })
    }

    fn headers(&mut self, raw: BTreeMap<String, raw::Secret>, at: &Place<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for (name, value) in raw {
            let at = at.key(&name);
            let name = self.check(values::header_name(&name), &at);
            let value = self.secret(value, &at).and_then(|value| self.check(values::header_value(value.reveal()), &at));
            let (Some(name), Some(mut value)) = (name, value) else { continue };
            if headers.iter().any(|(other, _)| *other == name) {
                self.problems.error(&at, "given twice; names of headers differ in more than case");
            }
            value.set_sensitive(true);
            headers.push((name, value));
        }
        headers
    }

    /// The rule for the route, and those for single tools.
    fn tasks(&mut self, raw: raw::Tasks, at: &Place<'_>) -> Option<(TaskPolicy, Vec<ToolRule>)> {
        let route = self.task_policy(&raw, at);
        if let Some(policy) = &route {
            self.check_times(policy, None, at);
        }
        // Something to compare with, so that the entries are checked even if the route's own keys are wrong.
        let base = route.clone().unwrap_or_default();
        let at = at.key("tools");
        let mut rules: Vec<ToolRule> = Vec::new();
        for (index, raw) in raw.tools.into_iter().enumerate() {
            let at = at.item(index);
            let Some(rule) = self.tool_rule(raw, &base, &at) else { continue };
            if route.is_some() {
                self.check_times(&rule.policy, Some(&base), &at);
            }
            let before = rules.iter().find(|before| before.pattern.is_everything() || before.pattern == rule.pattern);
            if let Some(before) = before {
                let message = format!("never used: an earlier entry matches `{}`", before.pattern);
                self.problems.warn(&at.key("match"), message);
            }
            rules.push(rule);
        }
        Some((route?, rules))
    }

    fn task_policy(&mut self, raw: &raw::Tasks, at: &Place<'_>) -> Option<TaskPolicy> {
        let defer = self.defer(&raw.defer, &at.key("defer"));
        let deadline = self.positive(&raw.deadline, &at.key("deadline"));
        let input_timeout = self.positive(&raw.input_timeout, &at.key("input_timeout"));
        let default_ttl = self.positive(&raw.ttl.default, &at.key("ttl").key("default"));
        let max_ttl = self.positive(&raw.ttl.max, &at.key("ttl").key("max"));
        let retention = self.duration(&raw.retention, &at.key("retention"));
        let poll_interval = self.positive(&raw.poll_interval, &at.key("poll_interval"));
        Some(TaskPolicy {
            support: support(raw.support),
            defer: defer?,
            questions: questions(raw.questions),
            exclusive: raw.exclusive,
            deadline: deadline?,
            input_timeout: input_timeout?,
            default_ttl: default_ttl?,
            max_ttl: max_ttl?,
            retention: retention?,
            poll_interval: poll_interval?,
            on_lost: on_lost(raw.on_lost),
            immediate_response: raw.immediate_response.clone(),
        })
    }

    /// A time after which a call becomes a task; inside, `None` is never.
    fn defer(&mut self, raw: &raw::Defer, at: &Place<'_>) -> Option<Option<Duration>> {
        if raw.0 == "never" {
            return Some(None);
        }
        self.check(units::parse_duration(&raw.0).map_err(|error| format!("{error}; or `never`")), at).map(Some)
    }

    /// The route's policy with an entry's differences.
    fn tool_rule(&mut self, raw: raw::Override, route: &TaskPolicy, at: &Place<'_>) -> Option<ToolRule> {
        let pattern = raw.pattern.and_then(|pattern| self.check(Pattern::parse(&pattern), &at.key("match")));
        let defer = match raw.defer {
            Some(raw) => self.defer(&raw, &at.key("defer")),
            None => Some(route.defer),
        };
        let mut or = |raw: Option<raw::Duration>, route: Duration, at: Place<'_>| match raw {
            Some(raw) => self.positive(&raw, &at),
            None => Some(route),
        };
        let deadline = or(raw.deadline, route.deadline, at.key("deadline"));
        let input_timeout = or(raw.input_timeout, route.input_timeout, at.key("input_timeout"));
        let default_ttl = or(raw.ttl.default, route.default_ttl, at.key("ttl").key("default"));
        let max_ttl = or(raw.ttl.max, route.max_ttl, at.key("ttl").key("max"));
        let poll_interval = or(raw.poll_interval, route.poll_interval, at.key("poll_interval"));
        let retention = match raw.retention {
            Some(raw) => self.duration(&raw, &at.key("retention")),
            None => Some(route.retention),
        };
        let policy = TaskPolicy {
            support: raw.support.map_or(route.support, support),
            defer: defer?,
            questions: raw.questions.map_or(route.questions, questions),
            exclusive: raw.exclusive.unwrap_or(route.exclusive),
            deadline: deadline?,
            input_timeout: input_timeout?,
            default_ttl: default_ttl?,
            max_ttl: max_ttl?,
            retention: retention?,
            poll_interval: poll_interval?,
            on_lost: raw.on_lost.map_or(route.on_lost, on_lost),
            immediate_response: raw.immediate_response.unwrap_or_else(|| route.immediate_response.clone()),
        };
        Some(ToolRule { pattern: pattern?, policy })
    }

    /// A task must not be gone before its call is over and its result could be read. What an entry inherits has been
    /// checked for the route.
    fn check_times(&mut self, policy: &TaskPolicy, route: Option<&TaskPolicy>, at: &Place<'_>) {
        let ttl = at.key("ttl");
        let times = |policy: &TaskPolicy| (policy.least_ttl(), policy.max_ttl);
        if policy.least_ttl() > policy.max_ttl && route.map(times) != Some(times(policy)) {
            let message = format!(
                "`deadline` ({}) + `retention` ({}) is more than `ttl.max` ({}): a task could be gone before its \
                 result",
                show_duration(policy.deadline),
                show_duration(policy.retention),
                show_duration(policy.max_ttl)
            );
            self.problems.error(&first_given([at.key("deadline"), at.key("retention"), ttl.key("max")], at), message);
        }
        let times = |policy: &TaskPolicy| (policy.default_ttl, policy.max_ttl);
        if policy.default_ttl > policy.max_ttl && route.map(times) != Some(times(policy)) {
            let (default, max) = (show_duration(policy.default_ttl), show_duration(policy.max_ttl));
            let message = format!("`ttl.default` ({default}) is more than `ttl.max` ({max})");
            self.problems.error(&first_given([ttl.key("default"), ttl.key("max"), ttl.clone()], at), message);
        }
    }
}

/// The key that is most likely at fault.
fn first_given<'a>(keys: [Place<'a>; 3], section: &Place<'a>) -> Place<'a> {
    keys.into_iter().find(Place::is_given).unwrap_or_else(|| section.clone())
}

fn support(raw: raw::Support) -> Support {
    match raw {
        raw::Support::Optional => Support::Optional,
        raw::Support::Required => Support::Required,
        raw::Support::Forbidden => Support::Forbidden,
    }
}

fn questions(raw: raw::Questions) -> Questions {
    match raw {
        raw::Questions::Auto => Questions::Auto,
        raw::Questions::InTask => Questions::InTask,
        raw::Questions::InCall => Questions::InCall,
    }
}

fn on_lost(raw: raw::OnLost) -> OnLost {
    match raw {
        raw::OnLost::Fail => OnLost::Fail,
        raw::OnLost::RetryIdempotent => OnLost::RetryIdempotent,
    }
}

fn era(raw: raw::Era) -> eras::Setting {
    match raw {
        raw::Era::Auto => eras::Setting::Auto,
        raw::Era::Legacy => eras::Setting::Legacy,
        raw::Era::Modern => eras::Setting::Modern,
    }
}

fn sessions(raw: raw::UpstreamSessions) -> SessionPolicy {
    match raw {
        raw::UpstreamSessions::Auto => SessionPolicy::Auto,
        raw::UpstreamSessions::PerCall => SessionPolicy::PerCall,
        raw::UpstreamSessions::Pooled => SessionPolicy::Pooled,
        raw::UpstreamSessions::Pinned => SessionPolicy::Pinned,
    }
}
