//! Writes down what callers of tasks do and are told, wherever the tasks are.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::checker::{Call, check};
use super::task::{Answer, Operation, Task};

/// The histories of tasks with ids of that kind.
#[derive(Debug)]
pub(crate) struct History<Id> {
    now: AtomicU64,
    calls: Mutex<HashMap<Id, Vec<Call<Task>>>>,
}

impl<Id: Clone + Eq + Hash + std::fmt::Debug> History<Id> {
    pub(crate) fn new() -> Self {
        Self { now: AtomicU64::new(0), calls: Mutex::default() }
    }

    /// The moment of a call or a return.
    pub(crate) fn tick(&self) -> u64 {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// Writes down a call that was made at that moment, and returns now where it has an answer.
    pub(crate) fn note(&self, id: &Id, operation: Operation, called: u64, answer: Option<Answer>) {
        let returned = answer.map(|answer| (self.tick(), answer));
        // A read that nobody saw says nothing.
        if returned.is_some() || operation != Operation::Get {
            let mut calls = self.calls.lock().unwrap();
            calls.entry(id.clone()).or_default().push(Call { operation, called, returned });
        }
    }

    /// Does something and writes it down; `None` is an answer that never came.
    pub(crate) async fn record(
        &self,
        id: &Id,
        operation: Operation,
        act: impl Future<Output = Option<Answer>>,
    ) -> Option<Answer> {
        let called = self.tick();
        let answer = act.await;
        self.note(id, operation, called, answer.clone());
        answer
    }

    /// Looks at the history of each task; gives the number of tasks and of operations.
    #[track_caller]
    pub(crate) fn check(&self) -> (usize, usize) {
        let calls = self.calls.lock().unwrap();
        for (id, calls) in calls.iter() {
            if let Err(impossible) = check(&Task::Missing, calls.clone()) {
                let lines: Vec<String> = impossible.0.iter().map(|call| format!("{call:?}\n")).collect();
                panic!("no order explains what was told of {id:?}:\n{}", lines.concat());
            }
        }
        (calls.len(), calls.values().map(Vec::len).sum())
    }
}
