//! Whether there is an order of the operations of one object, each somewhere between its call and its return, in which one after the
//! other would have given the same answers (Wing and Gong; with the memo of Lowe). An operation whose answer never came may
//! have happened at any later time, or not at all.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

/// The most operations of one object.
pub(crate) const MOST: usize = 256;

/// What an object does with one operation after the other.
pub(crate) trait Object: Clone + Eq + Hash + fmt::Debug {
    type Operation: Clone + fmt::Debug;
    type Answer: Clone + fmt::Debug;

    /// The object after the operation, where it can give that answer; any answer will do where it is unknown.
    fn after(&self, operation: &Self::Operation, answer: Option<&Self::Answer>) -> Option<Self>;
}

/// One operation of one caller.
#[derive(Debug, Clone)]
pub(crate) struct Call<O: Object> {
    pub(crate) operation: O::Operation,
    /// Counts all calls and returns.
    pub(crate) called: u64,
    /// When it returned, and with what; `None`: nobody knows.
    pub(crate) returned: Option<(u64, O::Answer)>,
}

/// Which operations have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Done([u64; MOST / 64]);

impl Done {
    fn has(self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(mut self, at: usize) -> Self {
        self.0[at / 64] |= 1 << (at % 64);
        self
    }
}

/// The calls as they can't have been answered by one object, in the order in which they were made.
#[derive(Debug)]
pub(crate) struct Impossible<O: Object>(pub(crate) Vec<Call<O>>);

/// Looks for an order. An object of more than [`MOST`] operations is not looked at at all, which is a mistake of the test.
pub(crate) fn check<O: Object>(first: &O, mut calls: Vec<Call<O>>) -> Result<(), Impossible<O>> {
    assert!(calls.len() <= MOST, "{} operations; at most {MOST}", calls.len());
    calls.sort_by_key(|call| call.called);
    let mut tried: HashSet<(Done, O)> = HashSet::new();
    let mut ahead = vec![(Done::default(), first.clone())];
    while let Some((done, object)) = ahead.pop() {
        let remain = || calls.iter().enumerate().filter(|(at, _)| !done.has(*at));
        // Nothing can have happened before that which was called after another's return.
        let first_return = remain().filter_map(|(_, call)| Some(call.returned.as_ref()?.0)).min();
        let Some(first_return) = first_return else { return Ok(()) };
        let callable = || remain().take_while(|(_, call)| call.called < first_return);
        let after = |call: &Call<O>| {
            let answer = call.returned.as_ref().map(|(_, answer)| answer);
            object.after(&call.operation, answer).filter(|after| answer.is_some() || *after != object)
        };
        // What changes nothing and may have happened now takes nothing from the others by happening first.
        let idle = callable().find(|(_, call)| after(call).as_ref() == Some(&object));
        for (at, call) in idle.map_or_else(|| callable().collect(), |idle| vec![idle]) {
            if let Some(after) = after(call) {
                let next = (done.with(at), after);
                if tried.insert(next.clone()) {
                    ahead.push(next);
                }
            }
        }
    }
    Err(Impossible(calls))
}
