//! The terminal during a call: a progress bar with what is being done, and the questions.

use std::io::{IsTerminal, Write, stderr, stdin};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use crate::client::{Event, Progress, Question, Task};

use super::form;

/// How many steps the bar has.
const STEPS: u64 = 1000;

/// Lines that the user types.
pub(super) type Keyboard = mpsc::Receiver<String>;

/// What is shown while a call runs. Everything goes to standard error: standard output is for the result.
#[derive(Debug)]
pub(super) struct Screen {
    bar: Option<ProgressBar>,
    asks: Asks,
    /// A prompt stands at the end of the screen.
    asking: bool,
}

/// Where answers come from.
#[derive(Debug)]
enum Asks {
    /// From standard input, which is a terminal; it is read from the first question on.
    Terminal,
    Lines(Keyboard),
    Nobody,
}

impl Screen {
    /// A bar where standard error is a terminal, questions where standard input is one, too.
    pub(super) fn new() -> Self {
        let shows = stderr().is_terminal();
        let asks = if shows && stdin().is_terminal() { Asks::Terminal } else { Asks::Nobody };
        Self { bar: shows.then(bar), asks, asking: false }
    }

    /// No bar, and these lines for answers.
    #[cfg(test)]
    pub(super) const fn with_lines(lines: Keyboard) -> Self {
        Self { bar: None, asks: Asks::Lines(lines), asking: false }
    }

    /// Shows events as they come. Never ends by itself.
    pub(super) async fn show(&mut self, events: &mut mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            match event {
                Event::Progress(progress) => self.progress(&progress),
                Event::Created(task) => self.say(&format!("task {}", task.id)),
                Event::Status(task) => self.status(&task),
                Event::Log { level, data } => self.say(&format!("{level}: {data}")),
                Event::Question(question) => self.ask(question).await,
            }
        }
        std::future::pending::<()>().await;
    }

    /// Prints a line, above the bar where there is one.
    pub(super) fn say(&self, line: &str) {
        let line = harmless(line);
        match &self.bar {
            Some(bar) => bar.suspend(|| write(&mut stderr(), &format!("{line}\n"))),
            None => write(&mut stderr(), &format!("{line}\n")),
        }
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.asking {
            write(&mut stderr(), "\n");
        }
    }

    fn progress(&self, progress: &Progress) {
        let Some(bar) = &self.bar else { return };
        if let Some(position) = position(progress) {
            if bar.length().is_none() {
                bar.set_length(STEPS);
                bar.set_style(style("{spinner} [{elapsed}] {bar:30} {percent:>3}% {wide_msg}"));
            }
            bar.set_position(position);
        }
        if let Some(message) = &progress.message {
            bar.set_message(harmless(message));
        }
    }

    fn status(&self, task: &Task) {
        let Some(bar) = &self.bar else { return };
        let message = task.message.as_deref().unwrap_or(task.status.as_str());
        bar.set_message(harmless(message));
    }

    async fn ask(&mut self, question: Question) {
        if matches!(self.asks, Asks::Terminal) {
            self.asks = keyboard().map_or(Asks::Nobody, Asks::Lines);
        }
        let Asks::Lines(lines) = &mut self.asks else {
            self.say(&format!("The server asked \"{}\"; declined, as nobody is at a terminal.", question.message));
            return question.decline();
        };
        if let Some(bar) = &self.bar {
            bar.disable_steady_tick();
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            // What it drew last stays otherwise.
            write(&mut stderr(), "\r\u{1b}[2K");
        }
        self.asking = true;
        let withdrawn = question.withdrawn();
        let mut output = stderr();
        let filled = tokio::select! {
            biased;
            () = withdrawn.cancelled() => {
                write(&mut stderr(), "\nThe server no longer needs an answer.\n");
                Some(None)
            }
            filled = form::fill(&question.message, &question.schema, lines, &mut output) => filled.map(Some),
        };
        self.asking = false;
        match filled {
            Some(Some(content)) => question.accept(content),
            Some(None) => {}
            None => question.decline(),
        }
        if let Some(bar) = &self.bar {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    }
}

const TICK: Duration = Duration::from_millis(100);

fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    bar.set_style(style("{spinner} [{elapsed}] {wide_msg}"));
    bar.enable_steady_tick(TICK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Where the bar stands; unknown without a total that makes sense.
fn position(progress: &Progress) -> Option<u64> {
    let total = progress.total.filter(|total| *total > 0.0)?;
    let share = (progress.progress / total).clamp(0.0, 1.0);
    // Between 0 and STEPS.
    share.is_finite().then_some((share * 1000.0) as u64)
}

/// Without what could move the cursor or change the terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter }).collect()
}

/// Reads standard input on a thread of its own, so that a read that waits never holds the program up.
fn keyboard() -> Option<Keyboard> {
    let (sender, lines) = mpsc::channel(1);
    let read = move || {
        for line in stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keyboard".to_owned()).spawn(read).ok()?;
    Some(lines)
}

/// Writes to a terminal or a pipe. That its reader has gone is no reason to fail.
pub(super) fn write(output: &mut dyn Write, text: &str) {
    if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        tracing::debug!(%error, "nobody reads the output");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_stands_where_the_progress_is() {
        let at = |progress, total| position(&Progress { progress, total, message: None });
        assert_eq!(at(1.0, Some(4.0)), Some(250));
        assert_eq!(at(9.0, Some(4.0)), Some(1000));
        assert_eq!(at(-1.0, Some(4.0)), Some(0));
        for (progress, total) in
            [(1.0, None), (1.0, Some(0.0)), (f64::NAN, Some(1.0)), (f64::INFINITY, Some(f64::INFINITY))]
        {
            assert_eq!(at(progress, total), None);
        }
    }

    #[test]
    fn servers_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\r\u{9b}c\nd"), "a [2Jb  c\nd");
    }
}
