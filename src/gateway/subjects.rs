//! The tokens that callers showed last, for routes whose upstream is addressed on behalf of each. What goes on without a
//! request of theirs (held calls, streams, the end of a session) goes on with the newest.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::oauth::secret::SubjectToken;
use crate::upstream::SessionKey;

use super::Route;
use super::session::Session;

/// So many callers are remembered.
const MOST: usize = 10_000;

/// The newest token of each caller, by [`Principal::digest`](crate::tenant::Principal::digest).
#[derive(Debug, Default)]
pub struct Subjects {
    // Held for a few map operations and never across an await.
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    shown: HashMap<[u8; 16], Shown>,
    /// Whoever called last: for what is asked once for all.
    last: Option<Arc<SubjectToken>>,
}

#[derive(Debug)]
struct Shown {
    token: Arc<SubjectToken>,
    at: Instant,
}

impl Subjects {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a caller shows now. Whoever shows none that could be used has none.
    pub fn note(&self, principal: [u8; 16], token: Option<&Arc<SubjectToken>>) {
        let mut book = self.book();
        let Some(token) = token else {
            book.shown.remove(&principal);
            return;
        };
        if book.shown.len() >= MOST && !book.shown.contains_key(&principal) {
            make_room(&mut book.shown);
        }
        book.last = Some(Arc::clone(token));
        book.shown.insert(principal, Shown { token: Arc::clone(token), at: Instant::now() });
    }

    fn newest(&self, principal: &[u8; 16]) -> Option<Arc<SubjectToken>> {
        self.book().shown.get(principal).map(|shown| Arc::clone(&shown.token))
    }
}

/// Drops the tenth that was shown longest ago.
fn make_room(shown: &mut HashMap<[u8; 16], Shown>) {
    let mut times: Vec<Instant> = shown.values().map(|shown| shown.at).collect();
    times.sort_unstable();
    if let Some(oldest) = times.get(MOST / 10) {
        shown.retain(|_, shown| shown.at > *oldest);
    }
}

impl Route {
    /// On whose behalf messages of this caller are sent; `None` where that makes no difference.
    pub(super) fn subject_of(&self, principal: &[u8; 16]) -> Option<Arc<SubjectToken>> {
        self.subjects.as_ref()?.newest(principal)
    }

    /// On whose behalf something is asked that is the same for everybody.
    pub(super) fn any_subject(&self) -> Option<Arc<SubjectToken>> {
        self.subjects.as_ref()?.book().last.clone()
    }

    /// The conversation behind a session, as it is addressed now.
    pub(super) fn key_of<'a>(&self, session: &'a Session) -> Cow<'a, SessionKey> {
        let terms = &session.terms;
        match self.subject_of(&terms.principal) {
            Some(subject) => Cow::Owned(terms.upstream.clone().on_behalf_of(Some(&subject))),
            None => Cow::Borrowed(&terms.upstream),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(text: &str) -> Arc<SubjectToken> {
        Arc::new(SubjectToken::new(HeaderValue::from_str(text).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_of_each_is_kept_and_not_too_many() {
        let subjects = Subjects::default();
        let principal = |number: u128| number.to_be_bytes();
        subjects.note(principal(1), Some(&token("one")));
        subjects.note(principal(2), Some(&token("two")));
        subjects.note(principal(1), Some(&token("new")));
        assert_eq!(subjects.newest(&principal(1)), Some(token("new")));
        assert_eq!(subjects.newest(&principal(2)), Some(token("two")));
        assert_eq!(subjects.newest(&principal(3)), None);
        subjects.note(principal(2), None);
        assert_eq!(subjects.newest(&principal(2)), None);
        for number in 0..20_000 {
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
            subjects.note(principal(number), Some(&token("many")));
        }
        assert!(subjects.book().shown.len() <= MOST);
        assert_eq!(subjects.newest(&principal(19_999)), Some(token("many")));
        assert_eq!(subjects.newest(&principal(0)), None);
    }
}
