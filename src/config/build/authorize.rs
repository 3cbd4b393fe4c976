//! Who may call which tool: the rules of a route, compiled.

use super::Builder;
use crate::config::{raw, tree::Place, values};
use crate::gateway::policy::Pattern;
use crate::gateway::rules::{Expression, Rule};

/// The most rules of a route: each that fits is looked at for every call.
const MOST_RULES: usize = 100;

impl Builder<'_> {
    pub(super) fn authorize(&mut self, raw: Vec<raw::Authorize>, at: &Place<'_>) -> Vec<Rule> {
        if raw.len() > MOST_RULES {
            self.problems.error(at, format!("a route has at most {MOST_RULES} rules"));
            return Vec::new();
        }
        raw.into_iter().enumerate().filter_map(|(index, rule)| self.rule(rule, &at.item(index))).collect()
    }

    fn rule(&mut self, raw: raw::Authorize, at: &Place<'_>) -> Option<Rule> {
        let (allow_at, scopes_at) = (at.key("allow"), at.key("scopes"));
        let pattern = self.check(Pattern::parse(&raw.pattern), &at.key("match"));
        let allow = raw.allow.map(|allow| self.check(Expression::parse(&allow), &allow_at));
        let scopes = self.each(&raw.scopes, &scopes_at, values::scope).into_iter().map(Into::into).collect();
        if allow.is_none() && raw.scopes.is_empty() && !self.problems.is_broken(&allow_at) {
            self.problems.error(at, "needs `allow`, `scopes` or both");
        }
        let allow = match allow {
            Some(allow) => Some(allow?),
            None => None,
        };
        Some(Rule { pattern: pattern?, allow, scopes })
    }

    /// Says that scopes ask for nothing where nobody has a token.
    pub(super) fn warn_scopes(&mut self, routes: &[raw::Route], at: &Place<'_>) {
        for (index, route) in routes.iter().enumerate() {
            for (number, _) in route.authorize.iter().enumerate().filter(|(_, rule)| !rule.scopes.is_empty()) {
                let at = at.item(index).key("authorize").item(number).key("scopes");
                let message = "ask nothing of anybody: only tokens have scopes, and none are accepted";
                self.problems.warn(&at, message);
            }
        }
    }
}
