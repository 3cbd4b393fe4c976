//! What a route says of a tool: whether it may be called, and how its tasks live.
//!
//! The configuration builds these rules, and checks them: this module trusts that a task outlives its call.

mod pattern;

use std::time::Duration;

pub use pattern::Pattern;

/// Whether calls of a tool may be, must be or can't be tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The client chooses.
    Optional,
    /// Always a task.
    Required,
    /// Never a task.
    Forbidden,
}

impl Support {
    /// The word in `execution.taskSupport`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
            Self::Forbidden => "forbidden",
        }
    }
}

/// Where an upstream's question goes before a modern client has a task's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Questions {
    /// In the call where the upstream is modern, else in a task.
    Auto,
    /// The call becomes a task that asks.
    InTask,
    /// The answer to the call asks.
    InCall,
}

/// What becomes of a call that the upstream may have seen, when the process that held it is gone and its answer can't be
/// taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLost {
    /// Its task fails.
    Fail,
    /// It is run again, where the tool says itself that this does no harm (`idempotentHint` or `readOnlyHint`).
    RetryIdempotent,
}

/// How the tasks of one tool live.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPolicy {
    /// Whether calls are tasks.
    pub support: Support,
    /// After how long a modern client's call becomes a task: at once for zero; `None`: never for that reason.
    pub defer: Option<Duration>,
    /// Where questions go before there is a task.
    pub questions: Questions,
    /// The tool runs alone on its upstream session, so that its questions are surely its own.
    pub exclusive: bool,
    /// How long a call may take, queue and questions included.
    pub deadline: Duration,
    /// How long a question may stay unanswered.
    pub input_timeout: Duration,
    /// How long a task is kept when the client does not say; at most `max_ttl`.
    pub default_ttl: Duration,
    /// The longest that a task is kept; at least [`TaskPolicy::least_ttl`].
    pub max_ttl: Duration,
    /// How long at least an outcome can be fetched.
    pub retention: Duration,
    /// How often clients are asked to poll.
    pub poll_interval: Duration,
    /// What becomes of a call whose process is gone.
    pub on_lost: OnLost,
    /// Text for the model while the task runs.
    pub immediate_response: Option<String>,
}

impl Default for TaskPolicy {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self {
            support: Support::Optional,
            defer: Some(Duration::from_millis(500)),
            questions: Questions::Auto,
            exclusive: false,
            deadline: minutes(30),
            input_timeout: minutes(10),
            default_ttl: minutes(60),
            max_ttl: minutes(24 * 60),
            retention: minutes(10),
            poll_interval: Duration::from_secs(1),
            on_lost: OnLost::Fail,
            immediate_response: None,
        }
    }
}

impl TaskPolicy {
    /// The shortest that a task is kept: its deadline and its retention.
    #[must_use]
    pub fn least_ttl(&self) -> Duration {
        self.deadline.saturating_add(self.retention)
    }

    /// The ttl that a task gets: long enough that its outcome can be fetched, and no longer than allowed. Receivers may
    /// override what was asked for (2025-11-25 tasks, "TTL and Resource Management").
    #[must_use]
    pub fn granted_ttl(&self, requested: Option<Duration>) -> Duration {
        requested.unwrap_or(self.default_ttl).max(self.least_ttl()).min(self.max_ttl)
    }
}

/// The rule for tools that match a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRule {
    /// Which tools.
    pub pattern: Pattern,
    /// How their tasks live.
    pub policy: TaskPolicy,
}

/// A route's rules for its tools.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolPolicy {
    /// Patterns of the tools that may be called.
    pub allow: Vec<Pattern>,
    /// Patterns of those that may not, whatever `allow` says.
    pub deny: Vec<Pattern>,
    /// Rules for single tools; the first that matches counts.
    pub rules: Vec<ToolRule>,
    /// The rule for all others.
    pub otherwise: TaskPolicy,
}

impl Default for ToolPolicy {
    fn default() -> Self {
        Self {
            allow: vec![Pattern::everything()],
            deny: Vec::new(),
            rules: Vec::new(),
            otherwise: TaskPolicy::default(),
        }
    }
}

impl ToolPolicy {
    /// Whether the tool may be called and is listed.
    #[must_use]
    pub fn permits(&self, tool: &str) -> bool {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(tool));
        matches(&self.allow) && !matches(&self.deny)
    }

    /// Whether every tool may be called.
    #[must_use]
    pub fn permits_all(&self) -> bool {
        self.deny.is_empty() && self.allow.iter().any(Pattern::is_everything)
    }

    /// How the tool's tasks live.
    #[must_use]
    pub fn of(&self, tool: &str) -> &TaskPolicy {
        self.rules.iter().find(|rule| rule.pattern.matches(tool)).map_or(&self.otherwise, |rule| &rule.policy)
    }

    /// Whether any tool runs alone on its session.
    #[must_use]
    pub fn has_exclusive(&self) -> bool {
        self.otherwise.exclusive || self.rules.iter().any(|rule| rule.policy.exclusive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_granted_ttl_covers_the_deadline_and_never_passes_the_maximum() {
        let policy = TaskPolicy::default();
        let least = policy.least_ttl();
        assert_eq!(policy.granted_ttl(None), policy.default_ttl);
        assert_eq!(policy.granted_ttl(Some(Duration::ZERO)), least);
        assert_eq!(policy.granted_ttl(Some(least + Duration::from_millis(1))), least + Duration::from_millis(1));
        assert_eq!(policy.granted_ttl(Some(Duration::MAX)), policy.max_ttl);
    }

    #[test]
    fn the_first_rule_that_matches_counts_and_deny_wins() {
        let forbidden = TaskPolicy { support: Support::Forbidden, ..TaskPolicy::default() };
        let rule = |pattern: &str, policy| ToolRule { pattern: Pattern::parse(pattern).unwrap(), policy };
        let policy = ToolPolicy {
            deny: vec![Pattern::parse("admin_*").unwrap()],
            rules: vec![rule("ping", forbidden), rule("*", TaskPolicy::default())],
            ..ToolPolicy::default()
        };
        assert_eq!(policy.of("ping").support, Support::Forbidden);
        assert_eq!(policy.of("other").support, Support::Optional);
        assert!(policy.permits("ping") && !policy.permits("admin_x") && !policy.permits_all());
    }
}
