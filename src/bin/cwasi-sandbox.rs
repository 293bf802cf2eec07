//! `cwasi-sandbox`: zygote, builder, sandbox init and workers. Only the shim starts it. Has the engine wasmtime, without
//! a compiler.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use cwasi_wasmtime::Wasmtime;

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
    // The shim executes an open file, by whose number the kernel names the process.
    nix::sys::prctl::set_name(c"cwasi-sandbox").context("name the process")?;
    match &arguments.command {
        Command::Zygote => Ok(cwasi_sandbox::zygote::run::<Wasmtime>()?),
    }
}
