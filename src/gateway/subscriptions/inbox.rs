//! Changes on their way to one reader: of several that say the same only the newest waits, so that a reader who is slow,
//! or never comes, costs no memory and no upstream is kept waiting for one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::mcp::subscription::{Filter, MAX_NAMES};

/// As many as a filter can name, and some parts of those.
const MAX_WAITING: usize = 2 * MAX_NAMES;

/// Something is not as it was: a notification as it is sent, but without the id of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) struct Change {
    /// Its method.
    pub(in crate::gateway) method: Box<str>,
    /// Its parameters as JSON text.
    pub(in crate::gateway) params: Option<Box<str>>,
}

/// What waits for one reader.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Inbox {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    filter: Filter,
    /// Oldest first, each with the name under which a later one takes its place.
    waiting: VecDeque<(String, Change)>,
    ended: bool,
}

impl Inbox {
    /// What passes from now on.
    pub(super) fn admit_only(&self, filter: Filter) {
        self.state().filter = filter;
    }

    /// What passes.
    pub(super) fn filter(&self) -> Filter {
        self.state().filter.clone()
    }

    /// Takes a notification, if it passes.
    pub(super) fn offer(&self, method: &str, params: Option<&str>) {
        let mut state = self.state();
        let Some(name) = state.filter.admit(method, params) else { return };
        let change = Change { method: method.into(), params: params.map(Into::into) };
        state.waiting.retain(|(waiting, _)| *waiting != name);
        if state.waiting.len() >= MAX_WAITING {
            state.waiting.pop_front();
        }
        state.waiting.push_back((name, change));
        drop(state);
        self.wake.notify_one();
    }

    /// Takes a notification for everything that passes: changes may have been missed.
    pub(super) fn offer_everything(&self) {
        for (method, params) in self.filter().everything() {
            self.offer(method, params.as_deref());
        }
    }

    /// Nothing comes any more.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.wake.notify_one();
    }

    /// The next change; `None` when all have been taken and none comes any more. For one reader. Cancel-safe.
    pub(super) async fn next(&self) -> Option<Change> {
        loop {
            let woken = self.wake.notified();
            {
                let mut state = self.state();
                if let Some((_, change)) = state.waiting.pop_front() {
                    return Some(change);
                }
                if state.ended {
                    return None;
                }
            }
            woken.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_of_those_that_say_the_same_waits() {
        let inbox = Inbox::default();
        inbox.offer("notifications/tools/list_changed", None);
        let uri = |uri: &str| format!(r#"{{"uri":"a:/{uri}"}}"#);
        inbox.admit_only(Filter::read(Some(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:/"]}"#)).unwrap());
        for number in 0..3 * MAX_WAITING {
            inbox.offer("notifications/tools/list_changed", Some(&format!(r#"{{"n":{number}}}"#)));
            inbox.offer("notifications/resources/updated", Some(&uri(&(number % 3).to_string())));
            inbox.offer("notifications/message", Some("{}"));
        }
        inbox.end();
        let mut taken = Vec::new();
        while let Some(change) = inbox.next().await {
            taken.push(change.params.unwrap().into_string());
        }
        taken.sort();
        let newest = format!(r#"{{"n":{}}}"#, 3 * MAX_WAITING - 1);
        assert_eq!(taken, [newest, uri("0"), uri("1"), uri("2")]);
    }

    #[tokio::test]
    async fn more_than_can_wait_push_out_the_oldest() {
        let inbox = Inbox::default();
        inbox.admit_only(Filter::read(Some(r#"{"resourceSubscriptions":["a:/"]}"#)).unwrap());
        for number in 0..2 * MAX_WAITING {
            inbox.offer("notifications/resources/updated", Some(&format!(r#"{{"uri":"a:/{number}"}}"#)));
        }
        inbox.end();
        let first = inbox.next().await.unwrap().params.unwrap();
        assert_eq!(&*first, format!(r#"{{"uri":"a:/{MAX_WAITING}"}}"#));
        let mut rest = 0;
        while inbox.next().await.is_some() {
            rest += 1;
        }
        assert_eq!(rest, MAX_WAITING - 1);
    }

    #[tokio::test]
    async fn everything_that_passes_may_have_changed() {
        let inbox = Inbox::default();
        inbox.admit_only(Filter::read(Some(r#"{"promptsListChanged":true,"resourceSubscriptions":["a:/"]}"#)).unwrap());
        inbox.offer_everything();
        assert_eq!(&*inbox.next().await.unwrap().method, "notifications/prompts/list_changed");
        assert_eq!(inbox.next().await.unwrap().params.as_deref(), Some(r#"{"uri":"a:/"}"#));
    }
}
