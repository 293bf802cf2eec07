//! `containerd-shim-cwasi-v1`: launcher and clean-up, as containerd's command line asks.
//!
//! containerd executes this binary twice per container, so it links neither the engine nor the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match cwasi::shim::bootstrap::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi: {error}");
            ExitCode::FAILURE
        }
    }
}
