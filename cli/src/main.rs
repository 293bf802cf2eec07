//! `cwasi`: the command for authors of workflows and operators of nodes. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cwasi_cli::main()
}
