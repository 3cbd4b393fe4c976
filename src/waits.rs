//! Waits that are cheap to begin and to end, for what happens with every request and hardly ever times out.
//!
//! Making and ending a sleep takes memory and the timer's lock twice; moving one to a later moment takes neither. So a
//! sleep that is not needed any more is kept for the next wait on the same thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;
use std::time::Instant as StdInstant;

use hyper::rt::{Sleep as HyperSleep, Timer};
use tokio::time::{Instant, Sleep};

use crate::threads;

/// No thread keeps more.
const KEPT: usize = 256;

/// Sleeps of one thread that wait for their next use.
pub type Spare = RefCell<Vec<Pin<Box<Sleep>>>>;

/// Resolves at its deadline.
pub struct Wait {
    /// Always there until this is dropped.
    sleep: Option<Pin<Box<Sleep>>>,
    spare: &'static LocalKey<Spare>,
}

impl Wait {
    /// Waits that share their spare sleeps should be of the same length: only a later moment is cheap.
    #[must_use]
    pub fn until(deadline: Instant, spare: &'static LocalKey<Spare>) -> Self {
        let kept = spare.with_borrow_mut(Vec::pop);
        let sleep = match kept {
            Some(mut sleep) => {
                sleep.as_mut().reset(deadline);
                sleep
            }
            None => Box::pin(tokio::time::sleep_until(deadline)),
        };
        Self { sleep: Some(sleep), spare }
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().map_or(Poll::Ready(()), |sleep| sleep.as_mut().poll(cx))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        // Elsewhere a thread can outlive the runtime that the sleep belongs to.
        if threads::number().is_none() {
            return;
        }
        let Some(sleep) = self.sleep.take() else { return };
        // An error says that the thread is ending.
        let _kept = self.spare.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.push(sleep);
            }
        });
    }
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wait")
    }
}

impl HyperSleep for Wait {}

thread_local! {
    static OF_CONNECTIONS: Spare = const { RefCell::new(Vec::new()) };
}

/// hyper's timer for connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionTimer;

impl Timer for ConnectionTimer {
    fn sleep(&self, duration: std::time::Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Wait::until(Instant::now() + duration, &OF_CONNECTIONS))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(Wait::until(deadline.into(), &OF_CONNECTIONS))
    }

    fn now(&self) -> StdInstant {
        Instant::now().into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    thread_local! {
        static SPARE: Spare = const { RefCell::new(Vec::new()) };
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_sleep_ends_at_its_next_deadline() {
        let begun = Instant::now();
        // As it would be on one of the threads that serve.
        SPARE.with_borrow_mut(|spare| spare.push(Box::pin(tokio::time::sleep(Duration::from_secs(10)))));
        let later = begun + Duration::from_secs(15);
        Wait::until(later, &SPARE).await;
        assert_eq!(Instant::now(), later);
        SPARE.with_borrow_mut(|spare| spare.push(Box::pin(tokio::time::sleep(Duration::from_secs(60)))));
        let sooner = later + Duration::from_secs(1);
        Wait::until(sooner, &SPARE).await;
        assert_eq!(Instant::now(), sooner);
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
    }
}
