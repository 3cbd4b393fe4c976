//! What a `subscriptions/listen` stream is to tell of: the filter that a client sends and a server acknowledges
//! (2026-07-28 subscriptions, "Notification Filter").

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::jsonrpc::{Object, Raw, raw_string, string_value};

use super::envelope::SUBSCRIPTION_ID;

const TASK_CHANGED: &str = "notifications/tasks";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// How many resources, and how many tasks, one stream may name.
pub const MAX_NAMES: usize = 1024;

/// What to tell of. Everything else is never sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `toolsListChanged`
    pub tools: bool,
    /// `promptsListChanged`
    pub prompts: bool,
    /// `resourcesListChanged`
    pub resources: bool,
    /// `resourceSubscriptions`
    pub uris: BTreeSet<Box<str>>,
    /// `taskIds`; `None` where the member is absent, which needs no extension.
    pub tasks: Option<BTreeSet<Box<str>>>,
}

impl Filter {
    /// Reads the `notifications` member of a request. Members that are not known are not subscribed to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(notifications: Option<&str>) -> Result<Self, &'static str> {
        let wrong = "`notifications` must be an object of booleans and lists of at most 1024 strings";
        let all = notifications.ok_or("`notifications` is missing")?;
        let all = Object::parse(all).map_err(|_| wrong)?;
        let flag = |name| all.get(name).map_or(Ok(false), flag).map_err(|()| wrong);
        let names = |name| all.get(name).map(names).transpose().map_err(|()| wrong);
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris: names("resourceSubscriptions")?.unwrap_or_default(),
            tasks: names("taskIds")?,
        })
    }

    /// Reads what an acknowledgement grants of what was asked for.
    #[must_use]
    pub fn acknowledged(&self, params: Option<Raw<'_>>) -> Self {
        let params = Object::parse_optional(params).unwrap_or_default();
        self.intersection(&Self::read(params.get("notifications")).unwrap_or_default())
    }

    /// What both tell of.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let tasks = match (&self.tasks, &other.tasks) {
            (Some(ours), Some(theirs)) => Some(ours & theirs),
            _ => None,
        };
        Self {
            tools: self.tools && other.tools,
            prompts: self.prompts && other.prompts,
            resources: self.resources && other.resources,
            uris: &self.uris & &other.uris,
            tasks,
        }
    }

    /// Whether it tells of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { tools, prompts, resources, uris, tasks } = self;
        !tools && !prompts && !resources && uris.is_empty() && tasks.as_ref().is_none_or(BTreeSet::is_empty)
    }

    /// Whether a notification may be sent, and under which name a later one takes its place: these only say that
    /// something is not as it was, so that of several that wait the newest is enough.
    #[must_use]
    pub fn admit(&self, method: &str, params: Option<&str>) -> Option<String> {
        let named = |member: &str| string_value(Object::parse(params?).ok()?.get(member)?).map(Cow::into_owned);
        let name = match method {
            TOOLS_CHANGED => self.tools.then(String::new),
            PROMPTS_CHANGED => self.prompts.then(String::new),
            RESOURCES_CHANGED => self.resources.then(String::new),
            RESOURCE_UPDATED => named("uri").filter(|uri| self.covers(uri)),
            TASK_CHANGED => {
                named("taskId").filter(|task| self.tasks.as_ref().is_some_and(|tasks| tasks.contains(&**task)))
            }
            _ => None,
        };
        name.map(|name| format!("{method} {name}"))
    }

    /// Whether a resource or the one that it is part of is subscribed to (2025-11-25 resources, "Subscriptions").
    fn covers(&self, uri: &str) -> bool {
        let is_part = |whole: &str| {
            uri.strip_prefix(whole)
                .is_some_and(|rest| rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
        };
        self.uris.contains(uri) || self.uris.iter().any(|whole| is_part(whole))
    }

    /// A notification for each thing that may have changed while nobody listened: methods and `params`.
    #[must_use]
    pub fn everything(&self) -> Vec<(&'static str, Option<String>)> {
        let lists = [(self.tools, TOOLS_CHANGED), (self.prompts, PROMPTS_CHANGED), (self.resources, RESOURCES_CHANGED)];
        let lists = lists.into_iter().filter(|(wanted, _)| *wanted).map(|(_, method)| (method, None));
        let updated = |uri: &str| (RESOURCE_UPDATED, Some(format!("{{\"uri\":{}}}", raw_string(uri))));
        lists.chain(self.uris.iter().map(|uri| updated(uri))).collect()
    }

    /// As it stands in `notifications`, of a request or of an acknowledgement.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut all = Object::default();
        let flags = [
            (self.tools, "toolsListChanged"),
            (self.prompts, "promptsListChanged"),
            (self.resources, "resourcesListChanged"),
        ];
        for (_, name) in flags.into_iter().filter(|(wanted, _)| *wanted) {
            all.set(name, "true");
        }
        if !self.uris.is_empty() {
            all.set("resourceSubscriptions", list(&self.uris));
        }
        if let Some(tasks) = &self.tasks {
            all.set("taskIds", list(tasks));
        }
        all.to_json()
    }
}

/// A notification's `params` as they stand on a stream of that id, which is JSON text.
#[must_use]
pub fn tagged(params: Option<&str>, id: &str) -> String {
    let Ok(mut params) = Object::parse(params.unwrap_or("{}")) else { return tagged(None, id) };
    let meta = params.get("_meta").unwrap_or("{}").to_owned();
    let mut meta = Object::parse(&meta).unwrap_or_default();
    meta.set(SUBSCRIPTION_ID, id);
    params.set("_meta", meta.to_json());
    params.to_json()
}

/// `params` without the id of the stream they came on, and without a `_meta` that held nothing else; `None` where nothing
/// is left.
#[must_use]
pub fn untagged(params: Option<&str>) -> Option<String> {
    let mut params = Object::parse(params?).ok()?;
    if let Some(meta) = params.get("_meta").map(str::to_owned) {
        let mut meta = Object::parse(&meta).unwrap_or_default();
        meta.remove(SUBSCRIPTION_ID);
        if meta.is_empty() {
            params.remove("_meta")
        } else {
            params.set("_meta", meta.to_json())
        };
    }
    (!params.is_empty()).then(|| params.to_json())
}

/// The id of the stream that a notification belongs to, as JSON text.
#[must_use]
pub fn subscription_of(params: Option<Raw<'_>>) -> Option<String> {
    let params = Object::parse_optional(params).ok()?;
    Object::parse(params.get("_meta")?).ok()?.get(SUBSCRIPTION_ID).map(str::to_owned)
}

fn flag(json: &str) -> Result<bool, ()> {
    json.parse().map_err(|_| ())
}

fn names(json: &str) -> Result<BTreeSet<Box<str>>, ()> {
    let names: Vec<String> = serde_json::from_str(json).map_err(|_| ())?;
    if names.len() > MAX_NAMES { Err(()) } else { Ok(names.into_iter().map(Into::into).collect()) }
}

fn list(names: &BTreeSet<Box<str>>) -> String {
    let names: Vec<String> = names.iter().map(|name| raw_string(name)).collect();
    format!("[{}]", names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> Filter {
        Filter::read(Some(json)).unwrap()
    }

    #[test]
    fn is_read_and_written() {
        for json in [
            "{}",
            r#"{"toolsListChanged":true}"#,
            r#"{"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a:/","b:/\""],"taskIds":[]}"#,
        ] {
            assert_eq!(filter(json).to_json(), json);
        }
        assert_eq!(filter(r#"{"toolsListChanged":false,"other":5}"#), Filter::default());
        assert!(filter(r#"{"taskIds":[]}"#).is_empty() && !filter(r#"{"taskIds":["x"]}"#).is_empty());
        let long = format!(r#"{{"taskIds":[{}]}}"#, vec!["\"x\""; MAX_NAMES + 1].join(","));
        for wrong in [
            None,
            Some("[]"),
            Some("true"),
            Some(r#"{"toolsListChanged":1}"#),
            Some(r#"{"toolsListChanged":null}"#),
            Some(r#"{"resourceSubscriptions":"a:/"}"#),
            Some(r#"{"resourceSubscriptions":[1]}"#),
            Some(r#"{"taskIds":null}"#),
            Some(long.as_str()),
        ] {
            assert!(Filter::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_acknowledgement_grants_nothing_that_was_not_asked_for() {
        let asked = filter(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:/","b:/"]}"#);
        let granted = |json: &str| asked.acknowledged(Some(serde_json::from_str(json).unwrap())).to_json();
        assert_eq!(
            granted(
                r#"{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["b:/","c:/"],"taskIds":["t"]}}"#
            ),
            r#"{"toolsListChanged":true,"resourceSubscriptions":["b:/"]}"#
        );
        assert_eq!(granted("{}"), "{}");
    }

    #[test]
    fn only_what_is_subscribed_to_is_admitted() {
        let filter = filter(r#"{"promptsListChanged":true,"resourceSubscriptions":["a:/x","b:/"],"taskIds":["t"]}"#);
        let uri = |uri: &str| filter.admit(RESOURCE_UPDATED, Some(&format!(r#"{{"uri":"{uri}"}}"#))).is_some();
        assert!(uri("a:/x") && uri("a:/x/y") && uri("a:/x#y") && uri("b:/y"));
        assert!(!uri("a:/xy") && !uri("a:/") && !uri("c:/"));
        assert!(filter.admit(PROMPTS_CHANGED, None).is_some());
        assert!(filter.admit(TASK_CHANGED, Some(r#"{"taskId":"t"}"#)).is_some());
        for (method, params) in [
            (TOOLS_CHANGED, None),
            (TASK_CHANGED, Some(r#"{"taskId":"u"}"#)),
            (TASK_CHANGED, None),
            (RESOURCE_UPDATED, None),
            ("notifications/progress", Some("{}")),
            ("notifications/message", Some("{}")),
        ] {
            assert_eq!(filter.admit(method, params), None, "{method}");
        }
    }

    #[test]
    fn streams_name_themselves_and_nothing_else_changes() {
        let params = r#"{"uri":"a:/","zz":1.10,"_meta":{"x/y":1E3}}"#;
        let on_stream = tagged(Some(params), "7");
        assert_eq!(
            on_stream,
            r#"{"uri":"a:/","zz":1.10,"_meta":{"x/y":1E3,"io.modelcontextprotocol/subscriptionId":7}}"#
        );
        assert_eq!(untagged(Some(&on_stream)).as_deref(), Some(params));
        let bare = tagged(None, "\"a\"");
        assert_eq!(bare, r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":"a"}}"#);
        assert_eq!(untagged(Some(&bare)), None);
        assert_eq!(subscription_of(Some(serde_json::from_str(&bare).unwrap())).as_deref(), Some("\"a\""));
    }

    #[test]
    fn everything_may_have_changed() {
        let filter = filter(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:/"],"taskIds":["t"]}"#);
        let expected = [(TOOLS_CHANGED, None), (RESOURCE_UPDATED, Some(r#"{"uri":"a:/"}"#.to_owned()))];
        assert_eq!(filter.everything(), expected);
    }
}
