//! Medians, ratios and targets, as text.

#![expect(clippy::print_stdout, reason = "a bench is read where it is run")]

use crate::cases::{Case, FLOOR, Judged, Over};
use crate::plan::Figure;
use crate::rounds::{Options, Round};

/// A judged figure, measured.
pub(crate) struct Verdict {
    case: &'static str,
    what: &'static str,
    spread: Option<Spread>,
    at_most: f64,
}

/// The median of some rounds, with the lowest and the highest.
#[derive(Clone, Copy)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let lower = if values.len().is_multiple_of(2) { *values.get(middle.checked_sub(1)?)? } else { upper };
        Some(Self { low, median: f64::midpoint(lower, upper), high })
    }

    fn text(self) -> String {
        format!("{:.2} [{:.2}-{:.2}]", self.median, self.low, self.high)
    }
}

/// Prints a case: a row for each run, a column for each figure.
pub(crate) fn case(case: &Case, rounds: &[Round], options: &Options) {
    let seconds = options.seconds;
    println!("{}: {} ({} rounds, windows of {seconds} s)", case.name, case.title, rounds.len());
    let mut columns = columns(case.unit);
    columns.retain(|column| column.is_seen(rounds));
    let mut head = format!("  {:<22}", "");
    for column in &columns {
        head += &format!("{:>width$}", column.title, width = column.width());
    }
    println!("{head}");
    for run in &case.runs {
        let mut row = format!("  {:<22}", run.label);
        for column in &columns {
            row += &format!("{:>width$}", column.cell(rounds, run.label), width = column.width());
        }
        println!("{}", row.trim_end());
    }
    println!();
}

/// What the case's targets came to.
pub(crate) fn verdicts(case: &Case, rounds: &[Round]) -> Vec<Verdict> {
    let verdict = |judged: &Judged| Verdict {
        case: case.name,
        what: judged.what,
        spread: Spread::of(rounds.iter().filter_map(|round| quotient(round, judged)).collect()),
        at_most: judged.at_most,
    };
    case.judged.iter().map(verdict).collect()
}

/// Prints all targets beside what was measured.
pub(crate) fn summary(verdicts: &[Verdict]) {
    if verdicts.iter().all(|verdict| verdict.spread.is_none()) {
        return;
    }
    println!("{:<18}{:<58}{:>24}{:>10}", "target", "", "median [low-high]", "at most");
    for Verdict { case, what, spread, at_most } in verdicts {
        let (text, word) = match spread {
            Some(spread) if spread.median <= *at_most => (spread.text(), "met"),
            Some(spread) => (spread.text(), "missed"),
            None => ("-".to_owned(), "not measured"),
        };
        println!("{case:<18}{what:<58}{text:>24}{at_most:>10}  {word}");
    }
}

fn quotient(round: &Round, judged: &Judged) -> Option<f64> {
    let (run, figure) = judged.figure;
    let measured = value(round, run, figure)?;
    let over = match judged.over {
        Over::Unit(unit) => unit,
        Over::Run(run, figure) => value(round, run, figure)?,
    };
    Some(measured / over)
}

fn value(round: &Round, run: &str, figure: Figure) -> Option<f64> {
    round.get(run)?.get(&figure).copied()
}

/// A figure, or its ratio to the same figure of another run.
struct Column {
    title: String,
    figure: Figure,
    over: Option<&'static str>,
    unit: f64,
    decimals: usize,
}

impl Column {
    fn is_seen(&self, rounds: &[Round]) -> bool {
        let has = |round: &Round| match self.over {
            Some(over) => value(round, over, self.figure).is_some(),
            None => round.values().any(|sample| sample.contains_key(&self.figure)),
        };
        rounds.iter().any(has)
    }

    fn width(&self) -> usize {
        self.title.len().max(if self.over == Some(FLOOR) { 18 } else { 9 }) + 2
    }

    fn cell(&self, rounds: &[Round], run: &str) -> String {
        let each = rounds.iter().filter_map(|round| {
            let measured = value(round, run, self.figure)?;
            Some(measured / self.over.map_or(Some(self.unit), |over| value(round, over, self.figure))?)
        });
        let Some(spread) = Spread::of(each.collect()) else {
            return "-".to_owned();
        };
        if self.over == Some(FLOOR) { spread.text() } else { format!("{:.*}", self.decimals, spread.median) }
    }
}

fn columns(unit: &str) -> Vec<Column> {
    let plain =
        |title: &str, figure, unit, decimals| Column { title: title.to_owned(), figure, over: None, unit, decimals };
    let ratio = |title: &str, figure, over| Column {
        title: title.to_owned(),
        figure,
        over: Some(over),
        unit: 1.0,
        decimals: 2,
    };
    vec![
        plain("per second", Figure::PerSecond, 1.0, 0),
        ratio("of direct", Figure::PerSecond, "direct"),
        ratio("of nginx", Figure::PerSecond, "nginx"),
        plain("p50 us", Figure::P50, 1.0, 0),
        plain("p99 us", Figure::P99, 1.0, 0),
        plain("handle p99 us", Figure::HandleP99, 1.0, 0),
        plain("polls", Figure::Polls, 1.0, 2),
        plain("upstream requests", Figure::Requests, 1.0, 4),
        plain("noise refused", Figure::Refused, 1.0, 2),
        plain(&format!("CPU us/{unit}"), Figure::Cpu, 1.0, 2),
        ratio("CPU, of the floor", Figure::Cpu, FLOOR),
        plain("CPU us/get, few", Figure::CpuFew, 1.0, 2),
        plain("CPU us/get, many", Figure::CpuMany, 1.0, 2),
        plain("ended after ms", Figure::Takeover, 1.0, 0),
        plain("serves after ms", Figure::Start, 1.0, 0),
        plain("kB", Figure::Bytes, 1e3, 1),
    ]
}
