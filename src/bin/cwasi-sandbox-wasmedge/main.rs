//! `cwasi-sandbox-wasmedge`: zygote, builder, sandbox init, worker and compiler of the engine WasmEdge, which it links.
//! Only the shim and `cwasi compile` start it.
#![expect(unsafe_code, reason = "takes the place of functions of libc")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use cwasi_vm::compile::{CPU_SECONDS_MAX, Limits, MEMORY_MAX, end_with_stdin};
use cwasi_wasmedge::{WasmEdge, fault_handlers, interrupted, stderr_tail};

/// Data plane of CWASI with WasmEdge: runs containers and functions for the shim daemon `cwasi-shim`.
#[derive(Debug, Parser)]
#[command(name = "cwasi-sandbox-wasmedge", version)]
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
        /// Begin when a byte comes on stdin, and end at once when stdin ends: for the shim.
        #[arg(long)]
        supervised: bool,
        /// Most memory in bytes.
        #[arg(long, default_value_t = MEMORY_MAX)]
        memory: u64,
        /// Most CPU seconds.
        #[arg(long, default_value_t = CPU_SECONDS_MAX)]
        cpu_seconds: u64,
        /// The module.
        wasm: PathBuf,
        /// Where the native code goes; appears whole or not at all.
        out: PathBuf,
    },
}

/// Called by the engine, and by everything else in this program, in place of libc's: see [`stderr_tail`].
///
/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(
    fd: libc::c_int,
    parts: *const libc::iovec,
    count: libc::c_int,
) -> libc::ssize_t {
    // SAFETY:
    // - says the caller.
    unsafe { stderr_tail::writev(fd, parts, count) }
}

/// As [`writev`]: see [`fault_handlers`].
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: libc::c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    // SAFETY:
    // - says the caller.
    unsafe { fault_handlers::sigaction(signal, new, old) }
}

/// As [`writev`]: see [`fault_handlers`].
///
/// # Safety
/// As signal(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(
    signal: libc::c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY:
    // - says the caller.
    unsafe { fault_handlers::signal(signal, handler) }
}

/// As [`writev`]: see [`interrupted`].
///
/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    max: libc::c_int,
    timeout: libc::c_int,
) -> libc::c_int {
    // SAFETY:
    // - says the caller.
    unsafe { interrupted::epoll_wait(epoll, events, max, timeout) }
}

/// As [`writev`]: see [`interrupted`].
///
/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn readv(
    fd: libc::c_int,
    parts: *const libc::iovec,
    count: libc::c_int,
) -> libc::ssize_t {
    // SAFETY:
    // - says the caller.
    unsafe { interrupted::readv(fd, parts, count) }
}

/// As [`writev`]: see [`interrupted`].
///
/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(
    socket: libc::c_int,
    message: *mut libc::msghdr,
    flags: libc::c_int,
) -> libc::ssize_t {
    // SAFETY:
    // - says the caller.
    unsafe { interrupted::recvmsg(socket, message, flags) }
}

/// As [`writev`]: see [`interrupted`].
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(
    socket: libc::c_int,
    message: *const libc::msghdr,
    flags: libc::c_int,
) -> libc::ssize_t {
    // SAFETY:
    // - says the caller.
    unsafe { interrupted::sendmsg(socket, message, flags) }
}

/// As [`writev`]: see [`interrupted`].
///
/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(
    socket: libc::c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> libc::c_int {
    // SAFETY:
    // - says the caller.
    unsafe { interrupted::connect(socket, address, len) }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi-sandbox-wasmedge: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // The shim executes an open file, by whose number the kernel names the process; a name has 15 bytes.
    nix::sys::prctl::set_name(c"cwasi-sandbox").context("name the process")?;
    match &arguments.command {
        Command::Zygote => Ok(cwasi_sandbox::zygote::run::<WasmEdge>()?),
        Command::Compile { supervised, memory, cpu_seconds, wasm, out } => {
            if *supervised {
                end_with_stdin()?;
            }
            let limits = Limits { memory: *memory, cpu_seconds: *cpu_seconds };
            Ok(cwasi_wasmedge::compile(wasm, out, limits)?)
        }
    }
}
