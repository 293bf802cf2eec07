//! `containerd-shim-cwasi-v1`: launcher, shim daemon and clean-up, as containerd's command line asks.
//!
//! Links no engine: containerd executes this binary three times per container.

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
