//! The checker itself: histories that one task could have given, and such as no task could.

use super::checker::{Call, MOST, check};
use super::task::{Answer, End, Operation, Task};
use Operation::{Ask, Cancel, Create, Get};

/// A call with the moments of its call and its return.
fn call(operation: Operation, called: u64, returned: u64, answer: Answer) -> Call<Task> {
    Call { operation, called, returned: Some((returned, answer)) }
}

/// A call that never returned.
fn lost(operation: Operation, called: u64) -> Call<Task> {
    Call { operation, called, returned: None }
}

fn created() -> Call<Task> {
    call(Create, 0, 1, Answer::Done)
}

fn result(text: &str) -> Operation {
    Operation::End(End::Returned(text.to_owned()))
}

fn seen(text: &str) -> Answer {
    Answer::Ended(End::Returned(text.to_owned()))
}

fn open(questions: &[u32]) -> Answer {
    Answer::Open(questions.to_vec())
}

#[track_caller]
fn good(calls: &[Call<Task>]) {
    check(&Task::Missing, calls.to_vec()).unwrap();
}

#[track_caller]
fn bad(calls: &[Call<Task>]) {
    assert!(check(&Task::Missing, calls.to_vec()).is_err(), "{calls:#?}");
}

#[test]
fn one_after_the_other() {
    good(&[
        call(Get, 0, 1, Answer::NotFound),
        call(Create, 2, 3, Answer::Done),
        call(Ask(1), 4, 5, Answer::Done),
        call(Get, 6, 7, open(&[1])),
        call(Operation::Answer(1), 8, 9, Answer::Done),
        call(Operation::Answer(1), 10, 11, Answer::Refused),
        call(Get, 12, 13, open(&[])),
        call(result("r"), 14, 15, Answer::Done),
        call(Cancel, 16, 17, Answer::Refused),
        call(Get, 18, 19, seen("r")),
    ]);
}

#[test]
fn what_overlaps_may_be_in_either_order() {
    for answer in [seen("r"), open(&[])] {
        good(&[created(), call(result("r"), 2, 5, Answer::Done), call(Get, 3, 4, answer)]);
    }
    let (ended, cancelled) = (call(result("r"), 2, 6, Answer::Done), call(Cancel, 3, 7, Answer::Refused));
    good(&[created(), ended.clone(), cancelled]);
    bad(&[created(), ended, call(Cancel, 3, 7, Answer::Done)]);
}

#[test]
fn an_acknowledged_task_is_there() {
    bad(&[created(), call(Get, 2, 3, Answer::NotFound)]);
    good(&[call(Create, 0, 3, Answer::Done), call(Get, 1, 2, Answer::NotFound)]);
    bad(&[created(), call(Create, 2, 3, Answer::Done)]);
}

#[test]
fn nothing_is_seen_before_it_is_there_or_after_it_is_over() {
    bad(&[created(), call(Get, 2, 3, seen("r")), call(result("r"), 4, 5, Answer::Done)]);
    bad(&[created(), call(Cancel, 2, 3, Answer::Done), call(Get, 4, 5, open(&[]))]);
    bad(&[created(), call(result("r"), 2, 3, Answer::Done), call(Get, 4, 5, seen("other"))]);
}

/// While a write is under way a reader may see it or not; but whoever reads later sees no less.
#[test]
fn reads_do_not_go_back() {
    let write = call(result("r"), 2, 9, Answer::Done);
    good(&[created(), write.clone(), call(Get, 3, 4, open(&[])), call(Get, 5, 6, seen("r"))]);
    bad(&[created(), write, call(Get, 3, 4, seen("r")), call(Get, 5, 6, open(&[]))]);
}

#[test]
fn a_task_ends_once() {
    bad(&[created(), call(Cancel, 2, 3, Answer::Done), call(result("r"), 2, 3, Answer::Done)]);
    bad(&[
        created(),
        call(Cancel, 2, 8, Answer::Acknowledged),
        lost(result("r"), 2),
        call(Get, 3, 4, Answer::Ended(End::Cancelled)),
        call(Get, 5, 6, seen("r")),
    ]);
}

#[test]
fn a_question_has_one_answer() {
    let asked = call(Ask(1), 2, 3, Answer::Done);
    let answer = |answer| call(Operation::Answer(1), 4, 9, answer);
    good(&[created(), asked.clone(), answer(Answer::Done), answer(Answer::Refused)]);
    bad(&[created(), asked.clone(), answer(Answer::Done), answer(Answer::Done)]);
    bad(&[created(), asked, answer(Answer::Refused), answer(Answer::Refused)]);
}

#[test]
fn what_never_returned_may_have_happened_late_or_never() {
    let get = |at, answer| call(Get, at, at + 1, answer);
    good(&[created(), lost(Cancel, 2), get(3, open(&[])), get(5, open(&[]))]);
    good(&[created(), lost(Cancel, 2), get(3, open(&[])), get(5, Answer::Ended(End::Cancelled))]);
    bad(&[created(), lost(Cancel, 2), get(3, Answer::Ended(End::Cancelled)), get(5, open(&[]))]);
    bad(&[created(), get(3, Answer::Ended(End::Cancelled)), lost(Cancel, 5)]);
    good(&[lost(Create, 0), get(3, Answer::NotFound), get(5, open(&[]))]);
    bad(&[lost(Create, 0), get(3, open(&[])), get(5, Answer::NotFound)]);
}

/// All calls at once, which is the most orders that there can be: it is told apart in no time, good or bad.
#[test]
fn two_hundred_operations_at_once() {
    let read = |number: u64, answer| call(Get, 1 + number, 1000 + number, answer);
    let mut calls = vec![created(), call(result("r"), 2, 2000, Answer::Done)];
    calls.extend((2..98).map(|number| read(number, open(&[]))));
    calls.extend((98..MOST as u64 - 60).map(|number| read(number, seen("r"))));
    calls.extend((0..40).map(|number| lost(Cancel, 100 + number)));
    good(&calls);
    calls.push(call(Get, 3000, 3001, seen("r")));
    calls.push(call(Get, 3002, 3003, Answer::Ended(End::Cancelled)));
    bad(&calls);
}
