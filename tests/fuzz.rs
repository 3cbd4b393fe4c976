//! Fuzzing without a fuzzer: each target gets mutations of its corpus for FUZZ_SECONDS (one; with CI, twenty) and fails with the
//! input as hex. FUZZ_SEED repeats a run. `make fuzz` gives the same targets to cargo-fuzz, which knows what they cover.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by a panic that says where")]

#[path = "fuzz/mutation.rs"]
mod mutation;
#[path = "fuzz/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mutation::Mutator;
use tokio::time::Instant;

/// One input must not take longer, on the slowest machine.
const HANGS: Duration = Duration::from_secs(60);

#[test]
fn jsonrpc() {
    fuzz("jsonrpc", targets::jsonrpc);
}

#[test]
fn sse() {
    fuzz("sse", targets::sse);
}

#[test]
fn headers() {
    fuzz("headers", targets::headers);
}

#[test]
fn tokens() {
    fuzz("tokens", targets::tokens);
}

#[test]
fn cel() {
    fuzz("cel", targets::cel);
}

#[test]
fn configuration() {
    fuzz("configuration", targets::configuration);
}

#[test]
fn machine() {
    fuzz("machine", targets::machine);
}

/// The input in hand, for whoever finds that it takes too long.
type Current = Arc<Mutex<Vec<u8>>>;

fn fuzz(name: &str, target: fn(&[u8])) {
    let (seconds, seed) = (seconds(), seed());
    println!("{name}: {seconds} s, FUZZ_SEED={seed}");
    let corpus = corpus(name);
    let current = Current::default();
    let (ended, outcome) = sync_channel(1);
    let run = Run { target, current: Arc::clone(&current), ended };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || run.all(&corpus, Mutator::new(seed), Duration::from_secs(seconds)))
        .unwrap();
    match outcome.recv_timeout(Duration::from_secs(seconds) + HANGS) {
        Ok(Ok(count)) => println!("{name}: {count} inputs"),
        Ok(Err(input)) => panic!("{name} fails (FUZZ_SEED={seed}) with {}", hex(&input)),
        Err(RecvTimeoutError::Timeout) => {
            let input = current.lock().unwrap_or_else(PoisonError::into_inner);
            panic!("{name} hangs (FUZZ_SEED={seed}) with {}", hex(&input));
        }
        Err(RecvTimeoutError::Disconnected) => panic!("{name}: the mutations themselves failed (FUZZ_SEED={seed})"),
    }
}

struct Run {
    target: fn(&[u8]),
    current: Current,
    ended: SyncSender<Result<u64, Vec<u8>>>,
}

impl Run {
    /// The corpus as it is, then mutations of it until the time is over.
    fn all(&self, corpus: &[Vec<u8>], mut mutator: Mutator, time: Duration) {
        let end = Instant::now() + time;
        let mut count = 0;
        for input in corpus {
            if !self.one(input) {
                return;
            }
            count += 1;
        }
        while Instant::now() < end {
            if !self.one(&mutator.next(corpus)) {
                return;
            }
            count += 1;
        }
        drop(self.ended.send(Ok(count)));
    }

    fn one(&self, input: &[u8]) -> bool {
        input.clone_into(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
        let is_good = catch_unwind(AssertUnwindSafe(|| (self.target)(input))).is_ok();
        if !is_good {
            drop(self.ended.send(Err(input.to_vec())));
        }
        is_good
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn seconds() -> u64 {
    number("FUZZ_SECONDS").unwrap_or(if std::env::var_os("CI").is_some() { 20 } else { 1 })
}

/// The standard library's own random number, unless one is given.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    number("FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(0))
}

/// The files of a target, in an order that does not depend on the file system.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{name} has no corpus");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
