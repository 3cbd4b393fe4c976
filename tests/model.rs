//! The protocol between replicas, in small and in full: every order of reads, writes, deaths, sleeps, takeovers and lost words is
//! tried, and the promises are looked at in each state. The state machine is the library's own; the store is what its contract
//! says. Each rule of the protocol is left out once, to see that it is needed and that the checker would notice.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by a panic that says where"
)]

#[path = "model/paths.rs"]
mod paths;
#[path = "model/promises.rs"]
mod promises;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/store.rs"]
mod store;
#[path = "model/world.rs"]
mod world;

use stateright::{Checker, HasDiscoveries, Model};

use promises::{ALL_ENDS, END_STAYS, ONE_END, ONE_HOLDER, REFUSED, SHOWN, WAITED};
use world::{Broken, Faults, Lost, Setup, Wish};

const NO_FAULTS: Faults = Faults { crashes: 0, stalls: 0, losses: 0, unanswered: 0 };

/// Two replicas and a task that one client waits for and another cancels.
fn small() -> Setup {
    Setup {
        replicas: 2,
        tasks: 1,
        places: 1,
        questions: 0,
        clients: vec![Wish::Cancel],
        waiters: 1,
        faults: NO_FAULTS,
        lost: Lost::Fails,
        is_lossy: false,
        creations_fail: false,
        broken: Broken::Nothing,
    }
}

/// Looks at every state that can be reached.
#[track_caller]
fn holds(setup: Setup) {
    let checker = setup.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Expects that the promise is broken, and shows how.
#[track_caller]
fn breaks(setup: Setup, promise: &'static str) {
    let checker = setup.checker().finish_when(HasDiscoveries::AnyOf([promise].into())).spawn_bfs().join();
    let example = checker.discovery(promise).unwrap_or_else(|| panic!("nothing breaks `{promise}`"));
    println!("{:?}", example.into_actions());
}

#[test]
fn without_faults() {
    holds(Setup { waiters: 2, clients: vec![Wish::Cancel, Wish::Cancel], ..small() });
}

#[test]
fn holders_die_and_sleep_and_calls_fail() {
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, ..NO_FAULTS }, ..small() });
}

#[test]
fn holders_die_and_sleep_and_calls_are_sent_again() {
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, ..NO_FAULTS }, lost: Lost::RunsAgain, ..small() });
}

#[test]
fn holders_die_and_sleep_and_calls_are_resumed() {
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, ..NO_FAULTS }, lost: Lost::Resumes, ..small() });
}

#[test]
fn words_are_lost() {
    let faults = Faults { crashes: 1, losses: 2, ..NO_FAULTS };
    holds(Setup { waiters: 2, is_lossy: true, faults, ..small() });
}

#[test]
fn questions_are_asked() {
    let clients = vec![Wish::Answer, Wish::Answer, Wish::Hear(1), Wish::Hear(2)];
    holds(Setup { questions: 2, clients, waiters: 0, ..small() });
}

#[test]
fn questions_are_asked_of_holders_that_go() {
    for lost in [Lost::Resumes, Lost::RunsAgain, Lost::Fails] {
        let faults = Faults { stalls: 1, ..NO_FAULTS };
        holds(Setup { questions: 1, clients: vec![Wish::Answer, Wish::Cancel], waiters: 0, faults, lost, ..small() });
    }
}

#[test]
fn two_tasks_and_one_place() {
    let faults = Faults { stalls: 1, ..NO_FAULTS };
    holds(Setup { tasks: 2, waiters: 0, lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn three_replicas() {
    let faults = Faults { crashes: 1, stalls: 1, ..NO_FAULTS };
    holds(Setup { replicas: 3, clients: Vec::new(), lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn three_replicas_sleep_in_turn() {
    let faults = Faults { stalls: 2, ..NO_FAULTS };
    holds(Setup { replicas: 3, waiters: 0, lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn two_tasks_a_question_and_a_death() {
    let (faults, clients) = (Faults { crashes: 1, stalls: 1, ..NO_FAULTS }, vec![Wish::Answer]);
    holds(Setup { tasks: 2, questions: 1, clients, waiters: 0, lost: Lost::Resumes, faults, ..small() });
}

fn creations_that_fail() -> Setup {
    let faults = Faults { unanswered: 2, ..NO_FAULTS };
    Setup { tasks: 2, clients: Vec::new(), waiters: 0, creations_fail: true, faults, ..small() }
}

fn takeovers_that_fail(lost: Lost) -> Setup {
    Setup { faults: Faults { crashes: 1, unanswered: 1, ..NO_FAULTS }, waiters: 0, lost, ..small() }
}

fn questions_that_fail(wishes: &[Wish]) -> Setup {
    let faults = Faults { unanswered: 1, ..NO_FAULTS };
    Setup { questions: 1, clients: wishes.to_vec(), waiters: 0, faults, ..small() }
}

#[test]
fn creations_are_not_answered() {
    holds(creations_that_fail());
}

#[test]
fn takeovers_are_not_answered() {
    for lost in [Lost::Resumes, Lost::RunsAgain, Lost::Fails] {
        holds(takeovers_that_fail(lost));
    }
}

#[test]
fn takeovers_of_sleepers_are_not_answered() {
    let faults = Faults { stalls: 1, unanswered: 2, ..NO_FAULTS };
    holds(Setup { clients: Vec::new(), faults, ..takeovers_that_fail(Lost::RunsAgain) });
}

#[test]
fn questions_and_claims_are_not_answered() {
    holds(questions_that_fail(&[Wish::Answer, Wish::Hear(1), Wish::Hear(2)]));
    let faults = Faults { stalls: 1, unanswered: 1, ..NO_FAULTS };
    holds(Setup { faults, lost: Lost::Resumes, ..questions_that_fail(&[Wish::Hear(1)]) });
}

/// Every path comes to its end, so that what holds at rest comes about.
#[test]
fn no_path_goes_round() {
    let faults = Faults { crashes: 1, stalls: 1, losses: 1, ..NO_FAULTS };
    let setup = Setup { questions: 1, is_lossy: true, lost: Lost::RunsAgain, faults, clients: Vec::new(), ..small() };
    println!("{} states", paths::all_end(&setup));
    let faults = Faults { crashes: 1, unanswered: 1, ..NO_FAULTS };
    println!("{} states", paths::all_end(&Setup { faults, is_lossy: false, ..setup }));
}

#[test]
fn without_fencing_a_sleeper_ends_what_another_holds() {
    let faults = Faults { stalls: 1, ..NO_FAULTS };
    breaks(Setup { broken: Broken::Fencing, faults, ..small() }, ONE_HOLDER);
}

#[test]
fn without_compare_and_set_a_cancel_and_a_result_both_end_a_task() {
    breaks(Setup { broken: Broken::CompareAndSet, ..small() }, ONE_END);
    breaks(Setup { broken: Broken::CompareAndSet, ..small() }, END_STAYS);
}

#[test]
fn a_wait_that_reads_first_sleeps_for_ever() {
    breaks(Setup { broken: Broken::WatchFirst, ..small() }, ALL_ENDS);
}

#[test]
fn a_lost_word_without_a_poll_is_a_lost_wake_up() {
    let faults = Faults { losses: 1, ..NO_FAULTS };
    breaks(Setup { broken: Broken::Poll, is_lossy: true, faults, ..small() }, ALL_ENDS);
}

#[test]
fn a_creation_that_is_not_taken_back_runs_though_it_was_refused() {
    breaks(Setup { broken: Broken::TakeBack, ..creations_that_fail() }, REFUSED);
}

#[test]
fn who_does_not_look_for_strays_has_tasks_that_never_end() {
    breaks(Setup { broken: Broken::Strays, ..takeovers_that_fail(Lost::Fails) }, ALL_ENDS);
}

#[test]
fn a_takeover_that_comes_after_the_look_is_found_by_nobody() {
    breaks(Setup { broken: Broken::Rounds, ..takeovers_that_fail(Lost::Fails) }, ALL_ENDS);
}

#[test]
fn a_claim_in_doubt_that_is_left_alone_is_shown_to_nobody() {
    breaks(Setup { broken: Broken::ClaimAgain, ..questions_that_fail(&[Wish::Hear(1)]) }, SHOWN);
}

#[test]
fn a_question_in_doubt_that_is_refused_stands_where_nobody_waits() {
    breaks(Setup { broken: Broken::AskAgain, ..questions_that_fail(&[]) }, WAITED);
}
