//! Who may call which tool: a route's rules, over what a caller's credential says and what the call brings.
//!
//! A rule that can't be decided refuses. Nothing of what was evaluated is ever told: neither to the caller nor to the log.

mod expression;
mod value;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cel::common::types::CelString;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use serde_json::json;
use tokio::time::Instant;

use crate::tenant::Caller;

use super::policy::Pattern;
pub use expression::Expression;
use value::Owned;

/// How much a call's `arguments` may be where a rule reads them: bytes of JSON, and values.
const MOST_ARGUMENTS: (usize, usize) = (1024 * 1024, 10_000);
/// The same where the rule goes through lists: it may read all of one for each value of the other.
const MOST_FOR_LOOPS: (usize, usize) = (64 * 1024, 1_000);
/// Values of a token's claims. A token's own length is bounded where it is read.
const MOST_CLAIMS: usize = 10_000;
/// Callers that are remembered in the form that rules read.
const MOST_CALLERS: usize = 1024;
/// How often a rule that fails is told of.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// What must hold for the calls of the tools that match.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Which tools.
    pub pattern: Pattern,
    /// What must be true of the call.
    pub allow: Option<Expression>,
    /// What the caller's credential must be good for.
    pub scopes: Vec<Box<str>>,
}

/// Why a call may not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Not by this caller, or not with these arguments: to them there is no such tool.
    Denied,
    /// The arguments are not such that the rules can be asked about them.
    Arguments(&'static str),
    /// The credential lacks some of these scopes, which are all that the tool needs, separated by spaces.
    Scopes(Box<str>),
}

/// The rules of one route.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// When each was last told of in the log.
    warned: Mutex<Vec<Option<Instant>>>,
    /// Callers as rules see them. An entry keeps its caller's address from being used again.
    known: Mutex<HashMap<usize, (Weak<Caller>, Arc<Identity>)>>,
}

impl Rules {
    /// The rules in the order of the file.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        let warned = Mutex::new(vec![None; rules.len()]);
        Self { rules, warned, known: Mutex::default() }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a caller may make this call. First what may never be, so that nobody gets a scope for it in vain.
    ///
    /// # Errors
    /// The first reason why not.
    pub(super) fn check(
        &self,
        route: &str,
        caller: &Arc<Caller>,
        tool: &str,
        arguments: Option<&str>,
    ) -> Result<(), Refusal> {
        if self.is_empty() {
            return Ok(());
        }
        self.check_known(route, caller, tool)?;
        self.check_arguments(route, caller, tool, arguments)?;
        self.check_scopes(caller, tool)
    }

    /// Whether a caller may know of the tool: what only the arguments of a call can decide is open, and scopes can be had.
    pub(super) fn shows(&self, route: &str, caller: &Arc<Caller>, tool: &str) -> bool {
        self.is_empty() || self.check_known(route, caller, tool).is_ok()
    }

    /// Whether a caller may have to do with what a call has made earlier: its arguments were looked at then.
    ///
    /// # Errors
    /// The first reason why not.
    pub(super) fn check_later(&self, route: &str, caller: &Arc<Caller>, tool: &str) -> Result<(), Refusal> {
        if self.is_empty() {
            return Ok(());
        }
        self.check_known(route, caller, tool)?;
        self.check_scopes(caller, tool)
    }

    fn matching<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = (usize, &'a Rule)> {
        self.rules.iter().enumerate().filter(|(_, rule)| rule.pattern.matches(tool))
    }

    /// The expressions for a tool that need the arguments of a call, or those that don't.
    fn expressions<'a>(&'a self, tool: &'a str, with: bool) -> impl Iterator<Item = (usize, &'a Expression)> {
        self.matching(tool)
            .filter_map(|(number, rule)| Some((number, rule.allow.as_ref()?)))
            .filter(move |(_, allow)| allow.needs_arguments() == with)
    }

    fn check_known(&self, route: &str, caller: &Arc<Caller>, tool: &str) -> Result<(), Refusal> {
        let mut rules = self.expressions(tool, false).peekable();
        if rules.peek().is_none() {
            return Ok(());
        }
        let identity = self.identity(caller);
        let variables = Variables { identity: &identity, tool, arguments: None };
        for (number, allow) in rules {
            self.must_hold(route, number, allow, &variables)?;
        }
        Ok(())
    }

    fn check_arguments(
        &self,
        route: &str,
        caller: &Arc<Caller>,
        tool: &str,
        arguments: Option<&str>,
    ) -> Result<(), Refusal> {
        let mut rules = self.expressions(tool, true).peekable();
        if rules.peek().is_none() {
            return Ok(());
        }
        let has_loops = self.expressions(tool, true).any(|(_, allow)| allow.has_loops());
        let arguments = read_arguments(arguments.unwrap_or("{}"), has_loops)?;
        let identity = self.identity(caller);
        let variables = Variables { identity: &identity, tool, arguments: Some(&arguments) };
        for (number, allow) in rules {
            self.must_hold(route, number, allow, &variables)?;
        }
        Ok(())
    }

    fn must_hold(
        &self,
        route: &str,
        number: usize,
        allow: &Expression,
        variables: &Variables<'_>,
    ) -> Result<(), Refusal> {
        match allow.holds(variables) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::Denied),
            Err(why) => {
                if self.may_warn(number, Instant::now()) {
                    let rule = format!("authorize[{number}]");
                    tracing::warn!(route, rule, why = why.as_str(), "a rule can't be decided, and refuses");
                }
                Err(Refusal::Denied)
            }
        }
    }

    /// Whether it is time to tell of a rule again.
    fn may_warn(&self, number: usize, now: Instant) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = warned.get_mut(number) else { return false };
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARNED_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    fn check_scopes(&self, caller: &Caller, tool: &str) -> Result<(), Refusal> {
        let needed = || self.matching(tool).flat_map(|(_, rule)| &rule.scopes);
        if needed().all(|scope| caller.scopes.contain(scope)) {
            return Ok(());
        }
        let mut all: Vec<&str> = Vec::new();
        for scope in needed() {
            if !all.contains(&&**scope) {
                all.push(scope);
            }
        }
        Err(Refusal::Scopes(all.join(" ").into()))
    }

    /// The caller as rules see it, made once for as long as its credential is remembered.
    fn identity(&self, caller: &Arc<Caller>) -> Arc<Identity> {
        let place = Arc::as_ptr(caller).addr();
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, identity)) = known().get(&place) {
            return Arc::clone(identity);
        }
        let identity = Arc::new(Identity::of(caller));
        let mut known = known();
        if known.len() >= MOST_CALLERS {
            known.retain(|_, (caller, _)| caller.strong_count() > 0);
        }
        if known.len() >= MOST_CALLERS {
            known.clear();
        }
        known.insert(place, (Arc::downgrade(caller), Arc::clone(&identity)));
        identity
    }
}

fn read_arguments(arguments: &str, has_loops: bool) -> Result<Owned, Refusal> {
    let (bytes, values) = if has_loops { MOST_FOR_LOOPS } else { MOST_ARGUMENTS };
    if !arguments.starts_with('{') {
        return Err(Refusal::Arguments("`arguments` must be an object"));
    }
    if arguments.len() > bytes {
        return Err(Refusal::Arguments("`arguments` are larger than the rules for this tool take"));
    }
    value::read(&mut serde_json::Deserializer::from_str(arguments), values).map_err(|_| {
        Refusal::Arguments(
            "`arguments` give a key twice, have a number that is out of range, or have more values than the rules for \
             this tool take",
        )
    })
}

/// What rules see of a caller.
#[derive(Debug)]
struct Identity {
    principal: Owned,
    claims: Owned,
    tenant: Arc<str>,
}

impl Identity {
    fn of(caller: &Caller) -> Self {
        let Caller { principal, claims, .. } = caller;
        let shown = json!({
            "tenant": &*principal.tenant,
            "issuer": &*principal.issuer,
            "subject": &*principal.subject,
            "client": &*principal.client,
            "authenticated": principal.authenticated,
        });
        // Claims that can't be read are none: rules that ask for one refuse.
        let read = |value, most| value::read(value, most).unwrap_or_else(|_| value::empty());
        Self {
            principal: read(&shown, usize::MAX),
            claims: read(&**claims, MOST_CLAIMS),
            tenant: Arc::clone(&principal.tenant),
        }
    }
}

/// What an expression finds under its names.
struct Variables<'a> {
    identity: &'a Identity,
    tool: &'a str,
    arguments: Option<&'a Owned>,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            "principal" => Some(CowVal::Borrowed(&*self.identity.principal)),
            "claims" => Some(CowVal::Borrowed(&*self.identity.claims)),
            "arguments" => self.arguments.map(|arguments| CowVal::Borrowed(&**arguments)),
            "tenant" => Some(CowVal::owned(CelString::from(&*self.identity.tenant))),
            "tool" => Some(CowVal::owned(CelString::from(self.tool))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
