//! The `taskgate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskgate::cli::run()
}
