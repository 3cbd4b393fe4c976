//! Gateways that are broken and pass the official suite all the same: each of them is caught here. The suite has nothing
//! on tasks of the core dialect, so every one of these is this project's own to find.
//!
//! 1. `tasks/get` without `createdAt`, `lastUpdatedAt` or `ttl`: every message that any test reads is looked at, in
//!    `support::answer`.
//! 2. One dialect's capability taken for the other's: `routing::no_word_of_tasks_reaches_the_server` declares the
//!    extension on a session of the core dialect; `sessions::a_client_of_a_later_era_is_told_to_go_back`.
//! 3. A header checked on one method and not on the others: the core dialect names no task in a header; those that it has
//!    are checked in `sessions` and `transport`, on each method.
//! 4. A cancelled task overwritten by a late result: `faults::a_result_that_comes_after_the_cancel_is_dropped`,
//!    `killing::a_cancel_against_a_completion_has_one_winner`.
//! 5. A task deleted before its ttl: `tasks::every_read_says_the_same_until_the_end_of_the_ttl`.
//! 6. Guessable ids: below.
//! 7. An answer to an unknown question acknowledged: `questions::answers_that_fit_nothing_are_told_apart`,
//!    `routing::only_the_owner_answers_a_task_s_question`.
//! 8. A cancel of an unknown id acknowledged: `tasks::unknown_ids_are_one_answer`,
//!    `callers::somebody_elses_task_does_not_exist`.
//! 9. A cancel that never reaches the upstream: `killing::a_cancelled_task_is_cancelled_upstream_by_the_id_of_its_call`,
//!    `stdio::a_cancelled_task_is_cancelled_in_the_server`.

use std::collections::HashSet;

use crate::support::{Gateway, json};

/// Ids are random in all their random bits: none is used twice, and no bit is the same in all.
#[tokio::test]
async fn ids_can_t_be_guessed() {
    let gateway = Gateway::setup().tenants("default: {kept_tasks: 1000, queued_tasks: 1000}").start().await;
    let client = gateway.open().await;
    let mut ids = HashSet::new();
    let (mut all, mut any) = (u128::MAX, 0);
    for _ in 0..200 {
        let id = client.start("echo", json!({"text": ""})).await;
        let number = u128::from_str_radix(&id.replace('-', ""), 16).unwrap();
        (all, any) = (all & number, any | number);
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "{id} is no version 4 UUID");
        assert!(ids.insert(id));
    }
    // The six bits that say which kind of UUID it is.
    let fixed = (0xf << 76) | (0b11 << 62);
    assert_eq!((all & !fixed, !any & !fixed), (0, 0), "some bits never change");
}
