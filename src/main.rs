//! The `taskgate` command.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// A call makes some 40 pieces of memory, and two threads make them beside each other: docs/decisions/0065.
#[global_allocator]
static MEMORY: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    taskgate::cli::run()
}
