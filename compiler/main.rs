//! `cwasi-compiler`: compiles a module or component to native code for wasmtime. The shim and `cwasi compile` start it.
//!
//! Cranelift reads untrusted input here, in a process of its own with limits of CPU time and memory. Workers have no
//! compiler in their program.

mod compile;
mod processor;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use cwasi_vm::compile::{CPU_SECONDS_MAX, Limits, MEMORY_MAX, end_with_stdin};

/// Compile a WebAssembly core module or component to native code. Limits its own CPU time and memory.
#[derive(Debug, Parser)]
#[command(name = "cwasi-compiler", version)]
struct Arguments {
    /// Begin when a byte comes on stdin, and end at once when stdin ends: for the shim.
    #[arg(long)]
    supervised: bool,
    /// Most memory in bytes.
    #[arg(long, default_value_t = MEMORY_MAX)]
    memory: u64,
    /// Most CPU seconds.
    #[arg(long, default_value_t = CPU_SECONDS_MAX)]
    cpu_seconds: u64,
    /// Features of the processor that the code may use, as `/proc/cpuinfo` names them; this machine's if they are not
    /// given.
    #[arg(long, value_delimiter = ',', num_args = 0.., require_equals = true)]
    features: Option<Vec<String>>,
    /// The module.
    wasm: PathBuf,
    /// Where the native code goes; appears whole or not at all.
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi-compiler: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // The shim executes an open file, by whose number the kernel names the process.
    nix::sys::prctl::set_name(c"cwasi-compiler").context("name the process")?;
    let Arguments { supervised, memory, cpu_seconds, features, wasm, out } = arguments;
    if *supervised {
        end_with_stdin()?;
    }
    Limits { memory: *memory, cpu_seconds: *cpu_seconds }.enforce(wasm)?;
    Ok(compile::compile(wasm, out, features.as_deref())?)
}
