//! Lines up to the bound, and a count of the rest.

use std::io;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::*;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    /// The fields of the lines that were written since the last time.
    fn take(&self) -> Vec<Value> {
        let text = std::mem::take(&mut *self.0.lock().unwrap());
        let lines = String::from_utf8(text).unwrap();
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["fields"].take()).collect()
    }
}

/// What is written while the guard lives.
fn listen() -> (Written, impl Drop) {
    let written = Written::default();
    let writer = written.clone();
    // With a single subscriber in the process, a test on another thread that comes first to the line switches it off
    // for all threads; with two, both are asked.
    let second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    (written, Listening { _guard: tracing::subscriber::set_default(subscriber), _second: second })
}

struct Listening {
    _guard: tracing::subscriber::DefaultGuard,
    _second: tracing::Dispatch,
}

impl Drop for Listening {
    fn drop(&mut self) {}
}

fn refused<'a>(principal: Option<&'a Principal>, task: &'a str) -> RefusedAccess<'a> {
    RefusedAccess { principal, peer: None, route: "reports", tool: "", task, reason: "task" }
}

#[tokio::test(start_paused = true)]
async fn each_has_a_line_up_to_the_bound_and_the_rest_is_counted() {
    let (written, _listening) = listen();
    let refusals = Refusals::new(Jobs::default());
    let (eve, ann) =
        (Principal::of_api_key("acme".into(), "eve".into()), Principal::of_api_key("acme".into(), "ann".into()));
    for number in 0..LINES.get() + 1000 {
        refusals.note(&refused(Some(&eve), &number.to_string()));
    }
    let lines = written.take();
    assert_eq!(lines.len(), LINES.get() as usize);
    let line = json!({"event": "refused", "tenant": "acme", "issuer": "", "subject": "eve", "route": "reports",
        "tool": "", "task": "0", "reason": "task"});
    assert_eq!(lines[0], line);
    // Others have lines of their own, and so has another reason.
    refusals.note(&refused(Some(&ann), ""));
    refusals.note(&RefusedAccess { reason: "session", ..refused(Some(&eve), "") });
    refusals.note(&refused(None, ""));
    assert_eq!(written.take().len(), 3);
    tokio::time::sleep(COUNTED_FOR + Duration::from_millis(1)).await;
    let counted = json!({"event": "refused_more", "tenant": "acme", "issuer": "", "subject": "eve", "reason": "task",
        "count": 1000});
    assert_eq!(written.take(), [counted]);
    // Ten seconds later ten more have lines, and the count begins anew.
    for _ in 0..15 {
        refusals.note(&refused(Some(&eve), ""));
    }
    assert_eq!(written.take().len(), 10);
    tokio::time::sleep(COUNTED_FOR + Duration::from_millis(1)).await;
    assert_eq!(written.take()[0]["count"], 5);
}

#[tokio::test(start_paused = true)]
async fn the_count_is_told_before_the_process_stops() {
    let (written, _listening) = listen();
    let jobs = Jobs::default();
    let refusals = Refusals::new(jobs.clone());
    for _ in 0..LINES.get() + 1 {
        refusals.note(&refused(None, ""));
    }
    assert_eq!(written.take().len(), LINES.get() as usize);
    assert_eq!(jobs.stop(Duration::from_secs(1)).await, 0);
    assert_eq!(written.take()[0]["count"], 1);
}
