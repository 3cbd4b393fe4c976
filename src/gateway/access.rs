//! What a caller may have to do with: the tools that the route permits and its rules allow, and the tasks that are the
//! caller's own. Asked here and nowhere else, so that every way in gives the same answer in the same words.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::jsonrpc::{Object, Raw, string_value};
use crate::metrics::label::RejectReason;
use crate::task::dialect::core;
use crate::task::{Task, TaskId};
use crate::tenant::refusals::RefusedAccess;
use crate::tenant::{Caller, Principal};

use super::call::Call;
use super::rejection::{Fault, Kind};
use super::rules::Refusal;
use super::{Gateway, Request, Route, over, owner};

/// The longest part of a tool's name that the audit log gets, in characters.
const AUDITED_NAME: usize = 128;

/// The tool that a request calls, if the route permits it and its rules allow this call to this caller. Nothing has been
/// made, queued or sent before.
///
/// # Errors
/// No name; a tool that does not exist for this caller; scopes that the credential lacks.
pub(super) fn called_tool<'a>(call: &Call, request: &Request<'a>) -> Result<Cow<'a, str>, Kind> {
    let name = tool_name(request)?;
    let Call { route, caller, .. } = call;
    if !route.tools.permits(&name) {
        return Err(unknown_tool(&name));
    }
    let arguments = request.params.arguments.map(Raw::get);
    route.rules.check(&route.name, caller, &name, arguments).map_err(|refusal| refused(refusal, &name))?;
    Ok(name)
}

/// The name of the tool that a request calls.
///
/// # Errors
/// There is none.
pub(super) fn tool_name<'a>(request: &Request<'a>) -> Result<Cow<'a, str>, Kind> {
    let name = request.params.name.and_then(|name| string_value(name.get()));
    name.ok_or(Kind::Params("`name` must be a string"))
}

fn unknown_tool(name: &str) -> Kind {
    Kind::UnknownTool(name.chars().take(AUDITED_NAME).collect::<String>().into())
}

fn refused(refusal: Refusal, tool: &str) -> Kind {
    match refusal {
        Refusal::Denied => unknown_tool(tool),
        Refusal::Arguments(why) => Kind::Params(why),
        Refusal::Scopes(needed) => Kind::Scopes(needed),
    }
}

impl Route {
    /// Whether every caller sees every tool that the server has.
    pub(super) fn shows_all_tools(&self) -> bool {
        self.tools.permits_all() && self.rules.is_empty()
    }

    /// Whether a caller sees a tool in lists.
    pub(super) fn shows_tool(&self, caller: &Arc<Caller>, tool: &str) -> bool {
        self.tools.permits(tool) && self.rules.shows(&self.name, caller, tool)
    }

    /// Whether a caller sees what a server lists under that name. One whose name can't be read nobody can look up.
    pub(super) fn shows_listed(&self, caller: &Arc<Caller>, name: Option<&str>) -> bool {
        name.map_or_else(|| self.shows_all_tools(), |name| self.shows_tool(caller, name))
    }

    /// A page of tools without those that this caller does not see; `None` when there is none of them.
    ///
    /// # Errors
    /// Something is to be left out of what can't be read.
    pub(super) fn only_shown(&self, caller: &Arc<Caller>, result: &str) -> Result<Option<String>, Fault> {
        if self.shows_all_tools() {
            return Ok(None);
        }
        let mut result = Object::parse(result).map_err(|_| Fault::UpstreamProtocol)?;
        let tools: Vec<&RawValue> =
            result.get("tools").and_then(|tools| serde_json::from_str(tools).ok()).ok_or(Fault::UpstreamProtocol)?;
        let name = |tool: &RawValue| Some(string_value(Object::parse(tool.get()).ok()?.get("name")?)?.into_owned());
        let is_shown = |tool: &&RawValue| self.shows_listed(caller, name(tool).as_deref());
        let all = tools.len();
        let shown: Vec<&str> = tools.into_iter().filter(is_shown).map(RawValue::get).collect();
        if shown.len() == all {
            return Ok(None);
        }
        let shown = format!("[{}]", shown.join(","));
        Ok(Some(result.set("tools", shown).to_json()))
    }

    /// A caller's own task as the rules let the caller see it in lists. A scope that is missing can be had, so the task is
    /// there; what its tool has said is not, as where it is read.
    pub(super) fn listed_task<'a>(&self, caller: &Arc<Caller>, task: &'a Task) -> Option<Cow<'a, Task>> {
        match self.check_task(caller, task) {
            Ok(()) => Some(Cow::Borrowed(task)),
            Err(Kind::Scopes(_)) => Some(Cow::Owned(Task { status_message: None, ..task.clone() })),
            Err(_) => None,
        }
    }

    /// Whether the rules still let a caller have to do with its own task. One whose tool they now deny is as unknown.
    ///
    /// # Errors
    /// No task, or scopes that the credential lacks.
    pub(super) fn check_task(&self, caller: &Arc<Caller>, task: &Task) -> Result<(), Kind> {
        match self.rules.check_later(&self.name, caller, &task.tool) {
            Ok(()) => Ok(()),
            Err(Refusal::Scopes(needed)) => Err(Kind::Scopes(needed)),
            Err(Refusal::Denied | Refusal::Arguments(_)) => Err(Kind::NoTask(Some(task.id))),
        }
    }
}

impl Gateway {
    /// The task that a request names: one lookup by owner and id.
    ///
    /// # Errors
    /// No such task for this caller, or scopes that the credential lacks.
    pub(super) async fn named_task(&self, call: &Call, request: &Request<'_>) -> Result<Arc<Task>, Kind> {
        let id = core::task_id(request.params.task_id).ok_or(Kind::NoTask(None))?;
        self.task_of(call, id).await
    }

    /// The task of that id, if it is the caller's.
    ///
    /// # Errors
    /// As for [`Gateway::named_task`].
    pub(super) async fn task_of(&self, call: &Call, id: TaskId) -> Result<Arc<Task>, Kind> {
        let owner = owner(&call.caller.principal, &call.route);
        let task = self.ledger.get(&owner, id).await?.ok_or(Kind::NoTask(Some(id)))?;
        call.route.check_task(&call.caller, &task)?;
        Ok(task)
    }

    /// Those of the named tasks whose tools the rules now deny to this caller: to a listener they are as unknown.
    ///
    /// # Errors
    /// Scopes that the credential lacks: what is told of a task is what reading it tells.
    pub(super) async fn denied_among(
        &self,
        call: &Call,
        named: Option<&BTreeSet<Box<str>>>,
    ) -> Result<Vec<TaskId>, Kind> {
        let mut denied = Vec::new();
        if call.route.rules.is_empty() {
            return Ok(denied);
        }
        for id in named.into_iter().flatten().filter_map(|name| TaskId::parse(name)) {
            match self.task_of(call, id).await {
                Ok(_) => {}
                Err(Kind::NoTask(_)) => denied.push(id),
                Err(other) => return Err(other),
            }
        }
        Ok(denied)
    }

    /// The refusal of a request that named something which is not there for its caller: unknown, expired and somebody else's
    /// are one answer, over the bound too.
    pub(super) fn missed(&self, principal: &Principal, kind: Kind) -> Kind {
        self.lookups.missed(principal, 1).map_err(over("lookups")).err().unwrap_or(kind)
    }

    /// Puts on record that a caller named a task which is not there for it, in a request that is not refused for that.
    pub(super) fn note_absent(&self, call: &Call, task: Option<TaskId>) {
        let task = task.map_or_else(String::new, |task| task.to_string());
        self.refusals.note(&RefusedAccess {
            peer: None,
            principal: Some(&call.caller.principal),
            route: &call.route.name,
            tool: "",
            task: &task,
            reason: RejectReason::Task.as_str(),
        });
    }
}

#[cfg(test)]
mod tests;
