//! What the tests stand on: a gateway in this process, clients that look closely at what they get, and raw connections.

mod answer;
pub(crate) mod authorization;
mod binary;
mod certificates;
mod client;
mod gateway;
pub(crate) mod http2;
pub(crate) mod issuer;
pub(crate) mod keys;
mod metrics;
pub(crate) mod modern;
mod mute;
pub(crate) mod processes;
mod raw;
pub(crate) mod raw_upstream;
pub(crate) mod replicas;
pub(crate) mod stateless;

use std::future::Future;
use std::time::Duration;

pub(crate) use answer::Answer;
pub(crate) use binary::Binary;
pub(crate) use certificates::Authority;
pub(crate) use client::{Client, Opening};
pub(crate) use gateway::{Gateway, Setup};
pub(crate) use issuer::Issuer;
pub(crate) use keys::Key;
pub(crate) use metrics::Exposition;
pub(crate) use modern::Modern;
pub(crate) use mute::Mute;
pub(crate) use raw::{Connection, RawAnswer};
pub(crate) use raw_upstream::RawUpstream;
pub(crate) use serde_json::{Value, json};

/// The key that names a message's task.
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";

/// How long anything may take. No test depends on how long it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must come.
#[track_caller]
pub(crate) fn within<F: Future>(awaited: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, awaited).await {
            Ok(come) => come,
            Err(_) => panic!("nothing came within {PATIENCE:?}: {caller}"),
        }
    }
}

/// Polls until a task has that status. One that has ended in another way never will.
pub(crate) async fn until_status(poll: impl AsyncFn() -> Value, status: &str) -> Value {
    within(async {
        loop {
            let task = poll().await;
            if task["status"] == status {
                return task;
            }
            assert!(!["completed", "failed", "cancelled"].iter().any(|end| task["status"] == *end), "{task}");
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// The text of a tool's result, given the whole response.
#[track_caller]
pub(crate) fn text_of(response: &Value) -> &str {
    match response["result"]["content"][0]["text"].as_str() {
        Some(text) => text,
        None => panic!("no text in {response}"),
    }
}

/// The task that a message says it belongs to.
pub(crate) fn related(message: &Value) -> Option<&str> {
    let of = |place: &str| message[place]["_meta"][RELATED]["taskId"].as_str();
    of("params").or_else(|| of("result"))
}
