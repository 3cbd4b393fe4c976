//! The gateway as its clients see it: real sockets, a server behind it that has no tasks, and nothing else.
//!
//! One binary, so that it is linked once. Each test reads as: given a gateway in front of a server that.., when a client..,
//! then... Whatever takes time is waited for as an event, with a bound that is long enough for a busy machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic that says where"
)]
#![allow(clippy::needless_pass_by_value, reason = "a call reads best with its JSON in place")]

mod support;

mod audit;
mod bad_messages;
mod both_eras;
mod bridge;
mod bridge_changes;
mod bridge_questions;
mod bridge_streams;
mod bridge_tasks;
mod broken_gateways;
mod bulk;
mod callers;
mod calling;
mod deferral;
mod disk;
mod eras;
mod extension;
mod faithful;
mod faults;
mod front;
mod hostile;
mod hostile_bodies;
mod hostile_http2;
mod killing;
mod ladder;
mod limits;
mod load;
mod login;
mod mirrored;
mod modern;
mod native;
mod once;
mod operators;
mod owners;
mod parking;
mod patience;
mod pool;
mod progress;
mod questions;
mod quotas;
mod redis;
mod replicas;
mod restart;
mod rolling;
mod rounds;
mod rounds_in_tasks;
mod routing;
mod rules;
mod secrets;
mod servers;
mod sessions;
mod stdio;
mod stopping;
mod subscriptions;
mod tasks;
mod tls;
mod tokens;
mod tools;
mod transport;
mod upstream_credentials;
mod versions;
