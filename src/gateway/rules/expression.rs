//! The condition of a rule, in CEL (Common Expression Language): compiled and checked when the configuration is read.
//!
//! The language has no fuel, so what an expression can cost is bounded by what may be written: docs/decisions/0045.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::{fmt, thread};

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators};
use cel::common::types::CelBool;
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, ParseErrors, Program, Value};

/// The longest expression, in bytes.
const LONGEST: usize = 4 * 1024;
/// How deep the parts of an expression may nest. `a && b && c` is as deep as it has operators, but for `&&` and `||`.
const DEEPEST: usize = 64;
/// The parser descends once for each level that is written, before anybody can count them.
const PARSER_STACK: usize = 64 * 1024 * 1024;

/// What an expression may name.
const VARIABLES: [&str; 5] = ["principal", "claims", "tenant", "tool", ARGUMENTS];
const ARGUMENTS: &str = "arguments";
/// Names that stand for a type, as in `type(x) == string`.
const TYPES: [&str; 9] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];
/// Functions with the number of their arguments; what is called on a value stands in `METHODS`.
const FUNCTIONS: [(&str, usize); 9] = [
    ("size", 1),
    ("type", 1),
    ("string", 1),
    ("int", 1),
    ("uint", 1),
    ("double", 1),
    ("bool", 1),
    ("bytes", 1),
    ("dyn", 1),
];
const METHODS: [(&str, usize); 4] = [("contains", 1), ("startsWith", 1), ("endsWith", 1), ("size", 0)];
/// Operators that give true or false, and those that give something else.
const LOGICAL: [&str; 12] = [
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::NOT_STRICTLY_FALSE,
    "bool",
];
const ARITHMETIC: [&str; 6] = [
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::NEGATE,
];

/// An expression that was found good.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    source: Box<str>,
    program: Program,
    env: Arc<Env>,
    facts: Facts,
}

/// What there is to know of an expression before it is evaluated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Facts {
    needs_arguments: bool,
    has_loops: bool,
}

/// Why an expression gave neither true nor false. It says nothing of any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// It asked for a member that is not there.
    MissingMember,
    /// What it came to is neither true nor false.
    NoBool,
    /// An operator or a function got values that it does not take.
    Values,
    /// The evaluation itself broke.
    Broken,
}

impl Failed {
    /// The same in words, for the log.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::MissingMember => "it asks for a member that is not there",
            Self::NoBool => "it gives neither true nor false",
            Self::Values => "an operator or a function got values that it does not take",
            Self::Broken => "its evaluation broke off",
        }
    }
}

impl Expression {
    /// Compiles and checks an expression.
    ///
    /// # Errors
    /// What is wrong, in words, with line and column within the expression where they are known.
    pub fn parse(source: &str) -> Result<Self, String> {
        if source.trim().is_empty() {
            return Err("an expression must not be empty".to_owned());
        }
        if source.len() > LONGEST {
            return Err(format!("an expression has at most {LONGEST} bytes"));
        }
        let env = Arc::new(Env::stdlib().with_optional_support(false));
        let program = compiled(&env, source)?;
        let facts = Check::whole(program.expression()).map_err(|Mistake { id, message }| {
            match id.and_then(|id| program.source_info().offset_for(id)) {
                Some((at, _)) => format!("{}: {message}", place(source, at)),
                None => message,
            }
        })?;
        Ok(Self(Arc::new(Compiled { source: source.into(), program, env, facts })))
    }

    /// The expression as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.source
    }

    /// Whether it can be decided only with the arguments of a call.
    pub(super) fn needs_arguments(&self) -> bool {
        self.0.facts.needs_arguments
    }

    /// Whether it goes through lists.
    pub(super) fn has_loops(&self) -> bool {
        self.0.facts.has_loops
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn holds(&self, variables: &dyn VariableResolver) -> Result<bool, Failed> {
        let mut context = Context::with_env(Arc::clone(&self.0.env));
        context.set_variable_resolver(variables);
        let value = catch_unwind(AssertUnwindSafe(|| {
            let value = Value::resolve_val(self.0.program.expression(), &context).map_err(|error| failed(&error))?;
            value.downcast_ref::<CelBool>().map(|value| *value.inner()).ok_or(Failed::NoBool)
        }));
        value.unwrap_or(Err(Failed::Broken))
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.0.source == other.0.source
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.0.source).finish()
    }
}

/// The error's own words hold values, so only its kind is used.
fn failed(error: &ExecutionError) -> Failed {
    match error {
        ExecutionError::NoSuchKey(_) => Failed::MissingMember,
        _ => Failed::Values,
    }
}

/// Parses on a stack of its own: a parser that breaks takes nothing else with it.
fn compiled(env: &Arc<Env>, source: &str) -> Result<Program, String> {
    let (env, text) = (Arc::clone(env), source.to_owned());
    let parsing = thread::Builder::new().stack_size(PARSER_STACK).spawn(move || env.compile(&text));
    let parsed = parsing.map_err(|error| format!("can't be read: {error}"))?.join();
    match parsed {
        Ok(Ok(program)) => Ok(program),
        Ok(Err(errors)) => Err(syntax(&errors)),
        Err(_) => Err("not an expression that can be read".to_owned()),
    }
}

/// The first thing that the parser found.
fn syntax(errors: &ParseErrors) -> String {
    let Some(first) = errors.errors.first() else { return "not an expression".to_owned() };
    // One line, whatever it quotes.
    let message: String = first.msg.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    match first.pos {
        (line @ 1.., column @ 0..) => format!("at {line}:{} of the expression: {message}", column.max(1)),
        _ => message,
    }
}

/// A place in an expression, which is given in bytes, counted from 1, in characters.
fn place(source: &str, offset: u32) -> String {
    let before = usize::try_from(offset).ok().and_then(|offset| source.get(..offset)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("at {line}:{column} of the expression")
}

/// What is wrong, and with which part.
struct Mistake {
    id: Option<u64>,
    message: String,
}

fn mistake<T>(expr: &IdedExpr, message: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { id: (expr.id != 0).then_some(expr.id), message: message.into() })
}

/// Goes through an expression.
struct Check<'e> {
    facts: Facts,
    /// What the macro that is being looked at names itself.
    own: Vec<&'e str>,
    depth: usize,
}

impl<'e> Check<'e> {
    fn whole(expr: &'e IdedExpr) -> Result<Facts, Mistake> {
        let mut check = Self { facts: Facts::default(), own: Vec::new(), depth: 0 };
        check.expression(expr)?;
        must_be_bool(expr)?;
        Ok(check.facts)
    }

    fn expression(&mut self, expr: &'e IdedExpr) -> Result<(), Mistake> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return mistake(expr, format!("the expression nests deeper than {DEEPEST} levels"));
        }
        match &expr.expr {
            Expr::Literal(_) => {}
            Expr::Ident(name) => self.name(expr, name)?,
            Expr::Select(select) => self.expression(&select.operand)?,
            Expr::Call(call) => {
                is_known(&call.func_name, call.target.is_some(), call.args.len()).or_else(|why| mistake(expr, why))?;
                self.all(call.target.as_deref().into_iter().chain(&call.args))?;
                self.operands(&call.func_name, &call.args)?;
            }
            Expr::List(ListExpr { elements, .. }) => self.all(elements)?,
            Expr::Map(map) => {
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return mistake(expr, "a map has keys and values");
                    };
                    self.all([&entry.key, &entry.value])?;
                }
            }
            Expr::Comprehension(comprehension) => self.comprehension(expr, comprehension)?,
            Expr::Struct(_) | Expr::Unspecified => return mistake(expr, "messages have no place in a rule"),
        }
        self.depth -= 1;
        Ok(())
    }

    fn all(&mut self, parts: impl IntoIterator<Item = &'e IdedExpr>) -> Result<(), Mistake> {
        parts.into_iter().try_for_each(|part| self.expression(part))
    }

    fn name(&mut self, expr: &IdedExpr, name: &str) -> Result<(), Mistake> {
        if self.own.contains(&name) {
            return Ok(());
        }
        self.facts.needs_arguments |= name == ARGUMENTS;
        if VARIABLES.contains(&name) || TYPES.contains(&name) {
            return Ok(());
        }
        let name: String = name.chars().take(60).collect();
        mistake(expr, format!("unknown variable `{name}`; there are {}", list(VARIABLES)))
    }

    /// What `&&`, `||` and `!` are between.
    fn operands(&self, operator: &str, operands: &'e [IdedExpr]) -> Result<(), Mistake> {
        match operator {
            operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
                operands.iter().try_for_each(must_be_bool)
            }
            _ => Ok(()),
        }
    }

    /// A macro goes through a list that may be the caller's, so that one inside another would take as long as both lists
    /// multiplied; and those that make new lists would make them as large.
    fn comprehension(&mut self, expr: &IdedExpr, comprehension: &'e ComprehensionExpr) -> Result<(), Mistake> {
        if self.facts.has_loops && !self.own.is_empty() {
            return mistake(expr, "`all`, `exists` and `exists_one` can't be inside one another");
        }
        if matches!(comprehension.accu_init.expr, Expr::List(_)) {
            return mistake(expr, "`map` and `filter` are not offered; `all`, `exists` and `exists_one` are");
        }
        self.facts.has_loops = true;
        // The list's own part too: one macro that goes through what another gave is one inside another.
        self.own.push(&comprehension.accu_var);
        self.all([&comprehension.iter_range, &comprehension.accu_init])?;
        self.own.push(&comprehension.iter_var);
        self.own.extend(comprehension.iter_var2.as_deref());
        self.all([&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result])?;
        self.own.clear();
        Ok(())
    }
}

/// Whether a function exists, and takes so many arguments.
fn is_known(name: &str, is_method: bool, arguments: usize) -> Result<(), String> {
    let is_operator = [LOGICAL.as_slice(), &ARITHMETIC, &[operators::INDEX, operators::CONDITIONAL]]
        .into_iter()
        .flatten()
        .any(|operator| *operator == name && !name.starts_with(char::is_alphabetic));
    if is_operator && !is_method {
        return Ok(());
    }
    let known: &[(&str, usize)] = if is_method { &METHODS } else { &FUNCTIONS };
    let shown: String = name.chars().take(60).collect();
    match known.iter().find(|(known, _)| *known == name) {
        Some((_, wanted)) if *wanted == arguments => Ok(()),
        Some((_, wanted)) => Err(format!("`{shown}` takes {wanted} arguments here, not {arguments}")),
        None if name == "matches" => {
            Err("`matches` is not offered: write the condition with `startsWith`, `endsWith`, `contains` and `==`"
                .to_owned())
        }
        None => Err(format!("unknown function `{shown}`; there are {}", list(known.iter().map(|(name, _)| *name)))),
    }
}

fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Refuses what is known to be neither true nor false, whatever the values.
fn must_be_bool(expr: &IdedExpr) -> Result<(), Mistake> {
    let is_none = match &expr.expr {
        Expr::Literal(literal) => !matches!(literal, LiteralValue::Boolean(_)),
        Expr::Ident(name) => VARIABLES.contains(&name.as_str()) || TYPES.contains(&name.as_str()),
        Expr::List(_) | Expr::Map(_) => true,
        Expr::Call(call) if call.func_name == operators::CONDITIONAL => {
            return call.args.iter().try_for_each(must_be_bool);
        }
        Expr::Call(call) => {
            let is_other =
                FUNCTIONS.iter().any(|(name, _)| *name == call.func_name && !matches!(*name, "bool" | "dyn"));
            ARITHMETIC.contains(&call.func_name.as_str()) || is_other
        }
        Expr::Select(_) | Expr::Comprehension(_) | Expr::Struct(_) | Expr::Unspecified => false,
    };
    if is_none { mistake(expr, "gives neither true nor false, as a rule must") } else { Ok(()) }
}
