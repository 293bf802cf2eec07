//! `cwasi-shim`: the shim daemon of one group, started by the launcher `containerd-shim-cwasi-v1`. Links no engine.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match cwasi_shim::daemon::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi-shim: {error}");
            ExitCode::FAILURE
        }
    }
}
