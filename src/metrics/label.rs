//! The values that labels may have, as closed sets: whatever a caller sends, the number of series has a bound.

/// Declares a set of label values and the text of each.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$value_doc])* $value,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The label's text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

label! {
    /// Which protocol a request speaks.
    Era {
        /// The one with `initialize`; also whatever can't be told.
        Legacy => "legacy",
        /// The one without.
        Modern => "modern",
    }
}

label! {
    /// How a request ended, each exactly once.
    Outcome {
        /// Answered with a result, or accepted. A body that was passed on unread counts as one, whatever is in it.
        Ok => "ok",
        /// Answered with a JSON-RPC error of the upstream's.
        Error => "error",
        /// Refused by the gateway for what the caller sent, may or has used up.
        Rejected => "rejected",
        /// The gateway or the upstream could not do it.
        Failed => "failed",
        /// The client was gone before the answer had been taken.
        Dropped => "dropped",
    }
}

label! {
    /// Where tasks stand. The protocol's words, and `queued` for those `working` ones that have no place yet.
    TaskStatus {
        /// Waiting for a place.
        Queued => "queued",
        /// The upstream works.
        Working => "working",
        /// The client is asked.
        InputRequired => "input_required",
        /// Done.
        Completed => "completed",
        /// Failed.
        Failed => "failed",
        /// Cancelled.
        Cancelled => "cancelled",
    }
}

label! {
    /// Why a task ended.
    EndReason {
        /// The tool returned.
        Returned => "returned",
        /// The tool returned and says that it failed.
        ToolError => "tool_error",
        /// The upstream answered with a JSON-RPC error.
        UpstreamError => "upstream_error",
        /// The client cancelled it.
        Cancelled => "cancelled",
        /// The upstream could not be reached.
        UpstreamUnreachable => "upstream_unreachable",
        /// The upstream broke the protocol.
        UpstreamProtocol => "upstream_protocol",
        /// The upstream went away, and what it did is unknown.
        OutcomeUnknown => "outcome_unknown",
        /// The process that held the call is gone, and what the upstream did is unknown.
        ReplicaLost => "replica_lost",
        /// Out of time.
        Deadline => "deadline",
        /// Nobody answered a question without which the call could not go on.
        InputTimeout => "input_timeout",
        /// The gateway was stopped.
        Shutdown => "shutdown",
        /// The store failed.
        Store => "store",
    }
}

label! {
    /// What was done with a task whose holder is gone.
    TakenUp {
        /// The upstream's answer is read on.
        Resumed => "resumed",
        /// The call had not been sent, and is now.
        Sent => "sent",
        /// The call is run once more.
        Again => "again",
        /// The task has failed.
        Failed => "failed",
    }
}

label! {
    /// How a message to an upstream ended.
    UpstreamOutcome {
        /// It was answered or taken.
        Answered => "answered",
        /// It was refused with an HTTP error status.
        Refused => "refused",
        /// Nobody was reached.
        Unreachable => "unreachable",
        /// The connection or process ended before the answer.
        Lost => "lost",
        /// The answer was not what the protocol says.
        Protocol => "protocol",
        /// The session was unknown.
        SessionGone => "session_gone",
        /// The gateway gave up: cancelled, or out of time.
        Abandoned => "abandoned",
    }
}

label! {
    /// Why a request was turned away.
    RejectReason {
        /// Over `running_tasks`.
        RunningTasks => "running_tasks",
        /// Over `queued_tasks`.
        QueuedTasks => "queued_tasks",
        /// Over `kept_tasks`.
        KeptTasks => "kept_tasks",
        /// Over `kept_bytes`.
        KeptBytes => "kept_bytes",
        /// Over the rate of new tasks.
        Creates => "creates",
        /// Over the rate of requests.
        Requests => "requests",
        /// Over the rate of polls.
        Polls => "polls",
        /// Over the bound on asking for what is not there.
        Lookups => "lookups",
        /// The upstream's queue is full.
        UpstreamQueue => "upstream_queue",
        /// Too many of a caller's calls wait for their client's answers.
        ParkedCalls => "parked_calls",
        /// More `subscriptions/listen` streams than a caller may have.
        Subscriptions => "subscriptions",
        /// No more sessions.
        Sessions => "sessions",
        /// No or bad credentials.
        Credentials => "credentials",
        /// Credentials that are not good for what was asked.
        Scopes => "scopes",
        /// A foreign `Origin`.
        Origin => "origin",
        /// A foreign `Host`.
        Host => "host",
        /// No such route or HTTP method.
        Route => "route",
        /// The body is too large.
        TooLarge => "too_large",
        /// A header that can't be served: content type, accept, version, event id.
        Header => "header",
        /// Not one JSON-RPC message.
        Message => "message",
        /// An unknown or ended session, or none.
        Session => "session",
        /// A tool that the route denies, or that is called as a task or plainly against the configuration.
        Tool => "tool",
        /// An unknown, foreign or expired task.
        Task => "task",
        /// Parameters that can't be used.
        Params => "params",
        /// The gateway is stopping.
        Stopping => "stopping",
    }
}

label! {
    /// What became of new certificate files.
    Reload {
        /// They are in use.
        Replaced => "replaced",
        /// They can't be used; those before them still are.
        Refused => "refused",
    }
}

label! {
    /// What became of a request that was passed on to another replica, once for each replica that was asked.
    PassedOn {
        /// It was answered.
        Answered => "answered",
        /// It could not be connected to, or did not take it: it was served elsewhere.
        Undone => "undone",
        /// It said that another is to serve it.
        Misdirected => "misdirected",
        /// It went away before it answered.
        Lost => "lost",
    }
}

label! {
    /// What the store was asked to do.
    StoreOp {
        /// Make a task.
        Create => "create",
        /// Read a task.
        Get => "get",
        /// Change a task.
        Update => "update",
        /// List a caller's tasks.
        List => "list",
        /// Find what is due.
        Due => "due",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_at_their_own_index_and_are_plain_words() {
        fn check(texts: impl Iterator<Item = (usize, usize, &'static str)>) {
            let mut seen = std::collections::HashSet::new();
            for (index, value, text) in texts {
                assert_eq!(index, value, "{text}");
                assert!(
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                    "{text}"
                );
                assert!(seen.insert(text), "{text}");
            }
        }
        check(Outcome::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(RejectReason::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(EndReason::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(TakenUp::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(UpstreamOutcome::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(TaskStatus::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(Reload::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(PassedOn::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(StoreOp::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
        check(Era::ALL.iter().enumerate().map(|(index, value)| (index, *value as usize, value.as_str())));
    }
}
