//! Who may call which tool: a route's rules, over what a caller's credential says and what the call brings.
//!
//! A rule that can't be decided refuses. Nothing of what was evaluated is ever told: neither to the caller nor to the log.

mod expression;
mod value;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
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
/// Tools of which it is remembered what was decided, for each caller, and the longest name among them.
const MOST_DECIDED: usize = 256;
const LONGEST_DECIDED: usize = 128;
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

/// Callers as rules see them, by their address. An entry keeps the address from being used again.
type Known = HashMap<usize, (Weak<Caller>, Arc<Identity>)>;

/// The rules of one route.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// When each was last told of in the log.
    warned: Mutex<Vec<Option<Instant>>>,
    known: Mutex<Known>,
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
        let needs_arguments = |needs: bool| self.expressions(tool).any(|(_, allow)| allow.needs_arguments() == needs);
        let (without, with) = (needs_arguments(false), needs_arguments(true));
        if without || with {
            let identity = self.identity(caller);
            if without {
                self.check_known(route, &identity, tool)?;
            }
            if with {
                self.check_arguments(route, &identity, tool, arguments)?;
            }
        }
        self.check_scopes(caller, tool)
    }

    /// Whether a caller may make this call, for tests that have no gateway around it.
    #[doc(hidden)]
    #[must_use]
    pub fn allow(&self, caller: &Arc<Caller>, tool: &str, arguments: Option<&str>) -> bool {
        self.check("", caller, tool, arguments).is_ok()
    }

    /// Whether a caller may know of the tool: what only the arguments of a call can decide is open, and scopes can be had.
    pub(super) fn shows(&self, route: &str, caller: &Arc<Caller>, tool: &str) -> bool {
        self.is_empty() || self.check_known(route, &self.identity(caller), tool).is_ok()
    }

    /// Whether a caller may have to do with what a call has made earlier: its arguments were looked at then.
    ///
    /// # Errors
    /// The first reason why not.
    pub(super) fn check_later(&self, route: &str, caller: &Arc<Caller>, tool: &str) -> Result<(), Refusal> {
        if self.is_empty() {
            return Ok(());
        }
        self.check_known(route, &self.identity(caller), tool)?;
        self.check_scopes(caller, tool)
    }

    fn matching<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = (usize, &'a Rule)> {
        self.rules.iter().enumerate().filter(|(_, rule)| rule.pattern.matches(tool))
    }

    /// The expressions for a tool.
    fn expressions<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = (usize, &'a Expression)> {
        self.matching(tool).filter_map(|(number, rule)| Some((number, rule.allow.as_ref()?)))
    }

    /// What is decided without arguments. It is the same each time, and remembered unless it could not be decided.
    fn check_known(&self, route: &str, identity: &Identity, tool: &str) -> Result<(), Refusal> {
        if let Some(allowed) = identity.decided(tool) {
            return if allowed { Ok(()) } else { Err(Refusal::Denied) };
        }
        let variables = Variables { identity, tool, arguments: None };
        let mut rules = self.expressions(tool).filter(|(_, allow)| !allow.needs_arguments());
        let allowed = rules
            .try_fold(true, |allowed, (number, allow)| Some(allowed && self.holds(route, number, allow, &variables)?));
        if let Some(allowed) = allowed {
            identity.decide(tool, allowed);
        }
        if allowed == Some(true) { Ok(()) } else { Err(Refusal::Denied) }
    }

    fn check_arguments(
        &self,
        route: &str,
        identity: &Identity,
        tool: &str,
        arguments: Option<&str>,
    ) -> Result<(), Refusal> {
        let rules = || self.expressions(tool).filter(|(_, allow)| allow.needs_arguments());
        let has_loops = rules().any(|(_, allow)| allow.has_loops());
        let arguments = Arguments { text: arguments.unwrap_or("{}"), has_loops, read: OnceLock::new() };
        let variables = Variables { identity, tool, arguments: Some(&arguments) };
        for (number, allow) in rules() {
            let holds = self.holds(route, number, allow, &variables);
            // Whatever came of the rest of it.
            if let Some(Err(refusal)) = arguments.read.get() {
                return Err(refusal.clone());
            }
            if holds != Some(true) {
                return Err(Refusal::Denied);
            }
        }
        Ok(())
    }

    /// Whether a rule's expression holds; `None` when it can't be decided, which is told of.
    fn holds(&self, route: &str, number: usize, allow: &Expression, variables: &Variables<'_>) -> Option<bool> {
        let holds = allow.holds(variables);
        if let Err(why) = holds
            && !variables.are_unread()
            && self.may_warn(number, Instant::now())
        {
            let rule = format!("authorize[{number}]");
            tracing::warn!(route, rule, why = why.as_str(), "a rule can't be decided, and refuses");
        }
        holds.ok()
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

/// The arguments of a call, read when a rule first asks for them.
struct Arguments<'a> {
    text: &'a str,
    /// A rule that may ask for them goes through lists.
    has_loops: bool,
    read: OnceLock<Result<Owned, Refusal>>,
}

impl Arguments<'_> {
    fn get(&self) -> Option<&Owned> {
        self.read.get_or_init(|| self.parse()).as_ref().ok()
    }

    fn parse(&self) -> Result<Owned, Refusal> {
        let (bytes, values) = if self.has_loops { MOST_FOR_LOOPS } else { MOST_ARGUMENTS };
        if !self.text.starts_with('{') {
            return Err(Refusal::Arguments("`arguments` must be an object"));
        }
        if self.text.len() > bytes {
            return Err(Refusal::Arguments("`arguments` are larger than the rules for this tool take"));
        }
        value::read(&mut serde_json::Deserializer::from_str(self.text), values).map_err(|_| {
            Refusal::Arguments(
                "`arguments` give a key twice, have a number that is out of range, or have more values than the rules \
                 for this tool take",
            )
        })
    }
}

/// What rules see of a caller.
#[derive(Debug)]
struct Identity {
    principal: Owned,
    claims: Owned,
    tenant: Arc<str>,
    /// What was decided of tools without arguments.
    decided: Mutex<HashMap<Box<str>, bool>>,
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
            decided: Mutex::default(),
        }
    }

    fn decided(&self, tool: &str) -> Option<bool> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner).get(tool).copied()
    }

    /// Remembers a decision. Callers choose the names, so that there may be no end of them.
    fn decide(&self, tool: &str, allowed: bool) {
        if tool.len() > LONGEST_DECIDED {
            return;
        }
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        if decided.len() >= MOST_DECIDED {
            decided.clear();
        }
        decided.insert(tool.into(), allowed);
    }
}

/// What an expression finds under its names.
struct Variables<'a> {
    identity: &'a Identity,
    tool: &'a str,
    arguments: Option<&'a Arguments<'a>>,
}

impl Variables<'_> {
    /// Whether the arguments were asked for and can't be read: that is the caller's fault, and no rule's.
    fn are_unread(&self) -> bool {
        self.arguments.is_some_and(|arguments| matches!(arguments.read.get(), Some(Err(_))))
    }
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            "principal" => Some(CowVal::Borrowed(&*self.identity.principal)),
            "claims" => Some(CowVal::Borrowed(&*self.identity.claims)),
            "arguments" => self.arguments?.get().map(|arguments| CowVal::Borrowed(&**arguments)),
            "tenant" => Some(CowVal::owned(CelString::from(&*self.identity.tenant))),
            "tool" => Some(CowVal::owned(CelString::from(self.tool))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
