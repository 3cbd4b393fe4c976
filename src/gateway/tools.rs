//! `tools/list`, which says what can be a task, and `tools/call`, where one begins.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::jsonrpc::{self, Id, Object, Outcome, Raw, string_value};
use crate::task::dialect::core;
use crate::task::{Hold, NewTask, SessionNumber, State, Task};
use crate::tenant::Principal;

use super::access::called_tool;
use super::call::{Answer, Call};
use super::forward::Manner;
use super::held::stored::{Sent, StoredCall};
use super::held::{Draft, HeldCall, Record};
use super::policy::{Support, TaskPolicy, ToolPolicy};
use super::rejection::{Fault, Kind};
use super::relay::{Rewrite, Rewritten};
use super::session::Session;
use super::{Gateway, Request, Route, owner};

/// The longest tool name that a task is made for, in bytes: the record keeps it.
const MAX_NAME: usize = 1024;

impl Gateway {
    /// Lists tools, on every page with what the route says of each (2025-11-25 tasks, "Tool-Level Negotiation").
    pub(super) async fn tools_list(
        self: &Arc<Self>,
        call: &mut Call,
        session: Arc<Session>,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let has_tasks = call.route.adds_tasks(&session);
        let filters = !call.route.shows_all_tools();
        let rewrite: Option<Rewrite> = if has_tasks || filters {
            let (route, caller) = (Arc::clone(&call.route), Arc::clone(&call.caller));
            Some(Arc::new(move |outcome| match outcome {
                Outcome::Result(result) => {
                    let is_shown = |tool: Option<&str>| route.shows_listed(&caller, tool);
                    match list_for_client(result.get(), &route.tools, is_shown, has_tasks) {
                        Some(list) => Rewritten::Result(list),
                        // What can't be read can't be filtered.
                        None if filters => Rewritten::fault(Fault::UpstreamProtocol),
                        None => Rewritten::Same,
                    }
                }
                Outcome::Error(_) => Rewritten::Same,
            }))
        } else {
            None
        };
        self.forward(call, session, request, Manner { rewrite, filters, ..Manner::default() }).await
    }

    /// Calls a tool: plainly, or as a task.
    pub(super) async fn tools_call(
        self: &Arc<Self>,
        call: &mut Call,
        session: Arc<Session>,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let name = called_tool(call, request)?;
        let route = Arc::clone(&call.route);
        let policy = route.tools.of(&name);
        let has_tasks = route.adds_tasks(&session);
        match (request.params.task, policy.support) {
            // 2025-11-25 tasks, "Tool-Level Negotiation" 2: -32601 in both cases.
            (None, Support::Required) if has_tasks => Err(Kind::NotServed("This tool can only be called as a task")),
            (Some(_), Support::Forbidden) if has_tasks => Err(Kind::NotServed("This tool can't be called as a task")),
            (Some(task), _) if has_tasks => self.create(call, &session, request, &name, task, policy).await,
            _ => {
                let manner =
                    Manner { exclusive: policy.exclusive, deadline: Some(policy.deadline), ..Manner::default() };
                self.forward(call, session, request, manner).await
            }
        }
    }

    /// Makes the task and answers at once; the upstream is called by a job that nobody's connection owns.
    #[expect(clippy::too_many_arguments, reason = "each is one thing that the call was found to be")]
    async fn create(
        self: &Arc<Self>,
        call: &mut Call,
        session: &Arc<Session>,
        request: &Request<'_>,
        tool: &str,
        task: Raw<'_>,
        policy: &TaskPolicy,
    ) -> Result<Answer, Kind> {
        let requested = core::requested_ttl(task.get()).map_err(Kind::Params)?;
        if request.params.arguments.is_some_and(|arguments| !arguments.get().starts_with('{')) {
            return Err(Kind::Params("`arguments` must be an object"));
        }
        let progress_token = request.params.progress_token().filter(|token| **token != *"null");
        if progress_token.as_deref().is_some_and(|token| Id::from_json(token).is_err()) {
            return Err(Kind::Params("`progressToken` must be a string or an integer of at most 1024 bytes"));
        }
        let wants_progress = progress_token.is_some();
        let (id, params) = (self.mint(), params_for_upstream(request));
        let stored = self.ledger.outlives_holders().then(|| {
            let (headers, exclusive) = (&call.headers, policy.exclusive);
            let sent = Sent { params: &params, headers, wants_progress, exclusive, id: &id };
            StoredCall::of(sent).on_session(session).to_text()
        });
        let (exclusive, input_timeout) = (policy.exclusive, policy.input_timeout);
        let headers = std::mem::take(&mut call.headers);
        let draft = Draft { params, wants_progress, headers, id: Some(id), refresh: None, exclusive };
        let (gateway, route, session) = (Arc::clone(self), Arc::clone(&call.route), Arc::clone(session));
        let (caller, tool) = (Arc::clone(&call.caller), Box::<str>::from(tool));
        let begin = async move {
            let making = Making {
                route: &route,
                principal: &caller.principal,
                tool: &tool,
                session: session.number,
                progress_token,
                requested_ttl: requested,
                policy: route.tools.of(&tool),
                stored,
            };
            let (task, hold) = gateway.make_task(making).await?;
            let record = Record::new(Arc::clone(&gateway), Arc::clone(&task), hold, input_timeout);
            let held = HeldCall::new(record, Arc::clone(&route), session, draft);
            gateway.jobs.spawn("held call", gateway.calls.track_future(held.run()));
            Ok::<_, Kind>(task)
        };
        // While a store outside of the process takes its time the client may hang up, and a task that was made must not be
        // without its call.
        let task = if self.ledger.outlives_holders() {
            let begun = self.jobs.spawn("create", self.calls.track_future(begin)).await;
            begun.map_err(|_| Kind::from(Fault::Shutdown))??
        } else {
            begin.await?
        };
        // 2025-11-25 tasks, "Creating Tasks": `working` in the answer, whatever has happened since.
        let created = Task { state: State::Queued, status_message: None, ..Task::clone(&task) };
        let result = core::create_result(&created, policy.immediate_response.as_deref());
        Ok(Answer::json(jsonrpc::response(&request.id, &result)))
    }
}

/// What a task is made of.
pub(super) struct Making<'a> {
    pub(super) route: &'a Route,
    pub(super) principal: &'a Principal,
    pub(super) tool: &'a str,
    pub(super) session: SessionNumber,
    pub(super) progress_token: Option<Box<str>>,
    pub(super) requested_ttl: Option<Duration>,
    pub(super) policy: &'a TaskPolicy,
    /// What the next holder of its call would need.
    pub(super) stored: Option<Arc<str>>,
}

impl Gateway {
    /// Makes a task, if its tenant may have one more. It can be read when this returns.
    pub(super) async fn make_task(&self, making: Making<'_>) -> Result<(Arc<Task>, Hold), Kind> {
        let Making { route, principal, tool, session, progress_token, requested_ttl, policy, stored } = making;
        if tool.len() > MAX_NAME {
            return Err(Kind::Params("`name` is longer than 1024 bytes"));
        }
        if self.is_draining() {
            return Err(Fault::Shutdown.into());
        }
        let new = NewTask {
            owner: Arc::new(owner(principal, route)),
            tool: tool.into(),
            session,
            progress_token,
            ttl: policy.granted_ttl(requested_ttl),
            poll_interval: policy.poll_interval,
            deadline: policy.deadline,
            draft: stored,
        };
        Ok(self.ledger.create(new, self.limits.of(&principal.tenant)).await?)
    }
}

/// `params` as the upstream sees them: no task vocabulary.
fn params_for_upstream(request: &Request<'_>) -> String {
    let whole = request.params.whole.map_or("{}", Raw::get);
    let Ok(mut params) = Object::parse(whole) else { return whole.to_owned() };
    core::without_related(&params.remove("task").to_json())
}

/// A page of tools as the client sees it: none that it may not know of, each with what the route says of tasks. An
/// upstream's own word is void: it has no tasks (2025-11-25 tasks, "Tool-Level Negotiation" 1). `None` for what is no page.
fn list_for_client(
    result: &str,
    policy: &ToolPolicy,
    is_shown: impl Fn(Option<&str>) -> bool,
    has_tasks: bool,
) -> Option<String> {
    let mut result = Object::parse(result).ok()?;
    let tools: Vec<&RawValue> = serde_json::from_str(result.get("tools")?).ok()?;
    let shown = tools.into_iter().filter_map(|tool| {
        let parsed = Object::parse(tool.get()).ok();
        let name = parsed.as_ref().and_then(|tool| string_value(tool.get("name")?));
        match (parsed.clone(), name) {
            (_, name) if !is_shown(name.as_deref()) => None,
            (Some(mut tool), Some(name)) if has_tasks => {
                let execution = tool.get("execution").unwrap_or("{}").to_owned();
                let mut execution = Object::parse(&execution).unwrap_or_default();
                execution.set("taskSupport", jsonrpc::raw_string(policy.of(&name).support.as_str()));
                Some(tool.set("execution", execution.to_json()).to_json())
            }
            _ => Some(tool.get().to_owned()),
        }
    });
    let shown = format!("[{}]", shown.collect::<Vec<_>>().join(","));
    Some(result.set("tools", shown).to_json())
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Pattern, ToolRule};
    use super::*;

    #[test]
    fn a_page_says_what_the_route_says_and_keeps_the_rest() {
        let forbidden = TaskPolicy { support: Support::Forbidden, ..TaskPolicy::default() };
        let policy = ToolPolicy {
            deny: vec![Pattern::parse("admin_*").unwrap()],
            rules: vec![ToolRule { pattern: Pattern::parse("ping").unwrap(), policy: forbidden }],
            ..ToolPolicy::default()
        };
        let permits = |tool: Option<&str>| tool.is_some_and(|tool| policy.permits(tool));
        let page = r#"{"tools":[{"name":"a","zz":1.10,"execution":{"y":2,"taskSupport":"forbidden"}},{"name":"admin_x"},{"name":"ping"},5],"nextCursor":"c d\"","_meta":{}}"#;
        assert_eq!(
            list_for_client(page, &policy, permits, true).unwrap(),
            r#"{"tools":[{"name":"a","zz":1.10,"execution":{"y":2,"taskSupport":"optional"}},{"name":"ping","execution":{"taskSupport":"forbidden"}}],"nextCursor":"c d\"","_meta":{}}"#
        );
        assert_eq!(
            list_for_client(r#"{"tools":[{"name":"admin_x"},{"name":"b"}]}"#, &policy, permits, false).unwrap(),
            r#"{"tools":[{"name":"b"}]}"#
        );
        let unnamed = r#"{"tools":[5,{"name":6}]}"#;
        assert_eq!(list_for_client(unnamed, &policy, |_| true, true).unwrap(), unnamed);
        assert_eq!(list_for_client(unnamed, &policy, permits, true).unwrap(), r#"{"tools":[]}"#);
        assert_eq!(list_for_client("{}", &policy, |_| true, true), None);
    }
}
