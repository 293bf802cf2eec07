//! The action `sleep` as a native program.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench_actions::run_native(bench_actions::sleep)
}
