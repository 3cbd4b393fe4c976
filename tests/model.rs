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

use promises::{ALL_ENDS, END_STAYS, ONE_END, ONE_HOLDER};
use world::{Broken, Faults, Lost, Setup, Wish};

const NO_FAULTS: Faults = Faults { crashes: 0, stalls: 0, losses: 0 };

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
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, losses: 0 }, ..small() });
}

#[test]
fn holders_die_and_sleep_and_calls_are_sent_again() {
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, losses: 0 }, lost: Lost::RunsAgain, ..small() });
}

#[test]
fn holders_die_and_sleep_and_calls_are_resumed() {
    holds(Setup { faults: Faults { crashes: 1, stalls: 1, losses: 0 }, lost: Lost::Resumes, ..small() });
}

#[test]
fn words_are_lost() {
    let faults = Faults { crashes: 1, stalls: 0, losses: 2 };
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
        let faults = Faults { crashes: 0, stalls: 1, losses: 0 };
        holds(Setup { questions: 1, clients: vec![Wish::Answer, Wish::Cancel], waiters: 0, faults, lost, ..small() });
    }
}

#[test]
fn two_tasks_and_one_place() {
    let faults = Faults { crashes: 0, stalls: 1, losses: 0 };
    holds(Setup { tasks: 2, waiters: 0, lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn three_replicas() {
    let faults = Faults { crashes: 1, stalls: 1, losses: 0 };
    holds(Setup { replicas: 3, clients: Vec::new(), lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn three_replicas_sleep_in_turn() {
    let faults = Faults { crashes: 0, stalls: 2, losses: 0 };
    holds(Setup { replicas: 3, waiters: 0, lost: Lost::RunsAgain, faults, ..small() });
}

#[test]
fn two_tasks_a_question_and_a_death() {
    let (faults, clients) = (Faults { crashes: 1, stalls: 1, losses: 0 }, vec![Wish::Answer]);
    holds(Setup { tasks: 2, questions: 1, clients, waiters: 0, lost: Lost::Resumes, faults, ..small() });
}

/// Every path comes to its end, so that what holds at rest comes about.
#[test]
fn no_path_goes_round() {
    let faults = Faults { crashes: 1, stalls: 1, losses: 1 };
    let setup = Setup { questions: 1, is_lossy: true, lost: Lost::RunsAgain, faults, clients: Vec::new(), ..small() };
    println!("{} states", paths::all_end(&setup));
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
