//! What the route says of a tool: whether it may be called, and how its tasks live.

use std::time::Duration;

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

/// How the tasks of one tool live.
#[derive(Debug, Clone)]
pub struct TaskPolicy {
    /// Whether calls are tasks.
    pub support: Support,
    /// The tool runs alone on its upstream session, so that its questions are surely its own.
    pub exclusive: bool,
    /// How long a call may take, queue and questions included.
    pub deadline: Duration,
    /// How long a question may stay unanswered.
    pub input_timeout: Duration,
    /// How long a task is kept when the client does not say.
    pub ttl_default: Duration,
    /// The longest that a task is kept.
    pub ttl_max: Duration,
    /// How long at least an outcome can be fetched.
    pub retention: Duration,
    /// How often clients are asked to poll.
    pub poll_interval: Duration,
    /// Text for the model while the task runs.
    pub immediate_response: Option<String>,
}

impl Default for TaskPolicy {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self {
            support: Support::Optional,
            exclusive: false,
            deadline: minutes(30),
            input_timeout: minutes(10),
            ttl_default: minutes(60),
            ttl_max: minutes(24 * 60),
            retention: minutes(10),
            poll_interval: Duration::from_secs(1),
            immediate_response: None,
        }
    }
}

impl TaskPolicy {
    /// The ttl that a task gets: long enough that its outcome can be fetched, and no longer than allowed. Receivers may
    /// override what was asked for (2025-11-25 tasks, "TTL and Resource Management").
    #[must_use]
    pub fn granted_ttl(&self, requested: Option<Duration>) -> Duration {
        requested.unwrap_or(self.ttl_default).max(self.deadline + self.retention).min(self.ttl_max)
    }
}

/// A route's rules for its tools.
#[derive(Debug, Clone)]
pub struct ToolPolicy {
    /// Patterns of the tools that may be called.
    pub allow: Vec<Pattern>,
    /// Patterns of those that may not, whatever `allow` says.
    pub deny: Vec<Pattern>,
    /// Rules for single tools; the first that matches counts.
    pub rules: Vec<(Pattern, TaskPolicy)>,
    /// The rule for all others.
    pub otherwise: TaskPolicy,
}

impl Default for ToolPolicy {
    fn default() -> Self {
        Self { allow: vec![Pattern::new("*")], deny: Vec::new(), rules: Vec::new(), otherwise: TaskPolicy::default() }
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
        self.deny.is_empty() && self.allow.iter().any(|pattern| pattern.0.as_ref() == "*")
    }

    /// How the tool's tasks live.
    #[must_use]
    pub fn of(&self, tool: &str) -> &TaskPolicy {
        self.rules.iter().find(|(pattern, _)| pattern.matches(tool)).map_or(&self.otherwise, |(_, policy)| policy)
    }

    /// Whether any tool runs alone on its session.
    #[must_use]
    pub fn has_exclusive(&self) -> bool {
        self.otherwise.exclusive || self.rules.iter().any(|(_, policy)| policy.exclusive)
    }
}

/// A tool name with `*` for any characters and `?` for one.
#[derive(Debug, Clone)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// The pattern as it is written.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether a name matches. Linear in the lengths' product at worst, whatever the name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let pattern: Vec<char> = self.0.chars().collect();
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut seen) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while let Some(&char) = name.get(seen) {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, seen));
                    at += 1;
                }
                Some(&wanted) if wanted == '?' || wanted == char => {
                    at += 1;
                    seen += 1;
                }
                _ => match star {
                    Some((place, start)) => {
                        star = Some((place, start + 1));
                        at = place + 1;
                        seen = start + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern.get(at..).unwrap_or_default().iter().all(|&char| char == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_shells_do() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("*", "anything", true),
            ("admin_*", "admin_x", true),
            ("admin_*", "xadmin_x", false),
            ("*_a*b", "x_aab", true),
            ("*_a*b", "x_aac", false),
            ("?", "é", true),
            ("?", "", false),
            ("", "", true),
            ("a", "ab", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn the_granted_ttl_covers_the_deadline_and_never_passes_the_maximum() {
        let policy = TaskPolicy::default();
        let least = policy.deadline + policy.retention;
        assert_eq!(policy.granted_ttl(None), policy.ttl_default);
        assert_eq!(policy.granted_ttl(Some(Duration::ZERO)), least);
        assert_eq!(policy.granted_ttl(Some(least + Duration::from_millis(1))), least + Duration::from_millis(1));
        assert_eq!(policy.granted_ttl(Some(Duration::MAX)), policy.ttl_max);
    }

    #[test]
    fn the_first_rule_that_matches_counts_and_deny_wins() {
        let forbidden = TaskPolicy { support: Support::Forbidden, ..TaskPolicy::default() };
        let policy = ToolPolicy {
            deny: vec![Pattern::new("admin_*")],
            rules: vec![(Pattern::new("ping"), forbidden), (Pattern::new("*"), TaskPolicy::default())],
            ..ToolPolicy::default()
        };
        assert_eq!(policy.of("ping").support, Support::Forbidden);
        assert_eq!(policy.of("other").support, Support::Optional);
        assert!(policy.permits("ping") && !policy.permits("admin_x") && !policy.permits_all());
    }
}
