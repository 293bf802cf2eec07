//! `cwasi-sandbox`: the data plane's binary. Linked with the engine; started by the shim only.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Data plane of CWASI: runs containers and functions for the shim daemon `cwasi-shim`.
#[derive(Debug, Parser)]
#[command(name = "cwasi-sandbox", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a shim whose control socket is descriptor 3; ends when the shim closes it.
    Zygote,
    /// Compile a WebAssembly core module to native code. Limits its own CPU time and memory.
    Compile {
        /// The module.
        wasm: PathBuf,
        /// Where the native code goes; appears whole or not at all.
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi-sandbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Zygote => Ok(cwasi::sandbox::zygote::run()?),
        Command::Compile { wasm, out } => Ok(cwasi::vm::compile(wasm, out)?),
    }
}
