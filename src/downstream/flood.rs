//! Lines of a log that strangers can cause: so many a second, and the number of those that were left out.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// Lines a second.
const MOST: u64 = 20;

/// Counts the lines of one kind.
#[derive(Debug)]
pub struct Flood {
    started: Instant,
    /// The second in which lines are counted now, and how many there were: 40 bits and 24.
    counted: AtomicU64,
    left_out: AtomicU64,
}

const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

impl Default for Flood {
    fn default() -> Self {
        Self { started: Instant::now(), counted: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }
}

impl Flood {
    /// Counts one more line. Gives the number of lines that were left out before it, or `None` if it is to be left out too.
    pub fn admit(&self) -> Option<u64> {
        let second = self.started.elapsed().as_secs() << COUNT_BITS;
        let next = |counted: u64| match counted & !COUNT {
            same if same == second => (counted & COUNT) + 1,
            _ => 1,
        };
        let update = |counted| Some(second | next(counted).min(COUNT));
        let before = self.counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).unwrap_or_default();
        if next(before) > MOST {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_are_left_out_and_counted() {
        let flood = Flood::default();
        let admitted = |flood: &Flood| (0..100).filter_map(|_| flood.admit()).collect::<Vec<_>>();
        assert_eq!(admitted(&flood), vec![0; 20]);
        tokio::time::advance(Duration::from_secs(1)).await;
        let again = admitted(&flood);
        assert_eq!((again.len(), again[0], again[1]), (20, 80, 0));
        tokio::time::advance(Duration::from_secs(1000)).await;
        assert_eq!(flood.admit(), Some(80));
    }
}
