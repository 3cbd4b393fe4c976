//! Every walk of the store through more than one entry passes here, so that a test can count the steps.

/// The entries, as they come.
#[cfg(not(test))]
pub(super) fn walk<T>(entries: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    entries
}

/// One more entry is looked at, in a loop.
#[cfg(not(test))]
pub(super) const fn step() {}

#[cfg(test)]
pub(super) use counted::{step, walk};

#[cfg(test)]
pub(super) mod counted {
    use std::cell::Cell;

    thread_local! {
        /// Operations of this store are carried out by who asks.
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(in super::super) fn walk<T>(entries: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        entries.inspect(|_| step())
    }

    pub(in super::super) fn step() {
        STEPS.set(STEPS.get() + 1);
    }

    /// The steps of this thread.
    pub(in super::super) fn steps() -> u64 {
        STEPS.get()
    }
}
