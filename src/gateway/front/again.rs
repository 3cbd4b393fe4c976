//! A task's call on a conversation of its own, when the process that held it is gone.

use std::sync::Arc;

use crate::gateway::eras::Side;
use crate::gateway::held::Record;
use crate::gateway::held::stored::{StoredCall, Way};
use crate::gateway::{Gateway, Route};
use crate::jsonrpc::Id;
use crate::tenant::{Caller, Principal};

use super::course::Course;
use super::job::{Job, What};

impl Gateway {
    /// Calls the upstream for a task that is held here now, when the tenant has a place for it. `id`: the request id, where
    /// the call has not been sent under it.
    pub(in crate::gateway) async fn call_anew(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: Principal,
        record: &Record,
        call: &StoredCall<'_>,
        id: Option<Id>,
    ) {
        let task = &record.task;
        let has_sessions = match call.way {
            Way::Own => call.upstream_has_sessions(),
            Way::Pooled => true,
            Way::Stateless => false,
        };
        let job = Job {
            gateway: Arc::clone(self),
            route: Arc::clone(route),
            caller: Arc::new(Caller::of(Arc::new(principal))),
            method: "tools/call".into(),
            tool: Some(task.tool.as_ref().into()),
            side: if has_sessions { Side::Legacy } else { Side::Modern(route.upstream.stateless()) },
            params: call.params.to_string(),
            wants_progress: call.wants_progress,
            headers: call.headers(),
            claims: (call.capabilities.as_ref().into(), call.client_info.as_ref().into()),
            log_level: call.log_level.as_deref().map(Into::into),
            profile: call.client(),
            may_ask: true,
            what: What::Call,
            policy: route.tools.of(&task.tool).clone(),
            course: Course::AtOnce,
        };
        job.hold(record, id).await;
    }
}
