//! `containerd-shim-cwasi-v1`: the launcher (`start`) and `delete`.
//!
//! containerd executes this program twice per container, so it links neither the engine nor the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match cwasi_shim::bootstrap::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi: {error}");
            ExitCode::FAILURE
        }
    }
}
