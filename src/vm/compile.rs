//! What every compiler process does around its engine's compiler: limits, reading the module, errors.
//!
//! The compiler reads untrusted input. It may abort, hang or exhaust memory, and then only its process ends.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cwasi_sys::process::{exit_now, yield_to_others};
use nix::sys::resource::{Resource, setrlimit};

use crate::state::ReservedName;

/// Default limit of CPU seconds of one compilation; beyond it the kernel kills the process. (Wasm takes about 16 s
/// per MB; a module of 9 MB took 147 s.)
pub const CPU_SECONDS_MAX: u64 = 1200;
/// Default memory limit of one compilation in bytes.
pub const MEMORY_MAX: u64 = 8 << 30;
/// Address space beyond the compiler's own memory, in bytes: libraries and reservations of allocators.
const ADDRESS_SPACE_MORE: u64 = 512 << 20;
/// Seconds between `SIGXCPU`, which reports the exceeded limit, and `SIGKILL`.
const CPU_SECONDS_MORE: u64 = 2;
/// Largest module that is compiled, in bytes.
pub const MODULE_MAX: u64 = 256 << 20;

/// Exit code of a compiler whose daemon is gone.
const EXIT_ABANDONED: i32 = 3;

/// First bytes of a core module, version 1.
const WASM_HEADER: [u8; 8] = *b"\0asm\x01\0\0\0";
/// First bytes of a component.
const COMPONENT_HEADER: [u8; 8] = *b"\0asm\x0d\0\x01\0";

#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A system call failed.
    #[error("{operation} {path} failed: {source}", path = .path.display())]
    Os {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is neither a WebAssembly core module nor a component", path = .path.display())]
    NotWasm { path: PathBuf },
    #[error("{path} is a component, which needs cwasi.engine=wasmtime", path = .path.display())]
    Component { path: PathBuf },
    /// The module contains native code.
    #[error(
        "{path} has a custom section `{section}`, which the engine would execute as native code; drop it first", path = .path.display()
    )]
    NativeCode { path: PathBuf, section: &'static str },
    #[error("{path} cannot be compiled: {source}", path = .path.display())]
    Reserved {
        path: PathBuf,
        #[source]
        source: ReservedName,
    },
    #[error("{path} has {length} bytes; modules may have at most {MODULE_MAX}", path = .path.display())]
    TooLarge {
        path: PathBuf,
        /// Its length in bytes.
        length: u64,
    },
    /// The engine refused the module.
    #[error("{path} cannot be compiled: {reason}", path = .path.display())]
    Engine { path: PathBuf, reason: String },
}

/// Limits of a compilation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory in bytes.
    pub memory: u64,
    /// Processor time in seconds.
    pub cpu_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: MEMORY_MAX, cpu_seconds: CPU_SECONDS_MAX }
    }
}

/// Waits for a byte on stdin. From then on, the end of stdin ends this process at once. So a compiler starts when its
/// daemon has put it into its cgroup, and does not outlive the daemon.
///
/// # Errors
/// When stdin ends first, or a thread cannot be started.
pub fn end_with_stdin() -> io::Result<()> {
    let mut stdin = io::stdin();
    stdin.read_exact(&mut [0])?;
    std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
        // Ends with whatever stdin ends with.
        let _ended = io::copy(&mut stdin, &mut io::sink());
        exit_now(EXIT_ABANDONED)
    })?;
    Ok(())
}

impl Limits {
    /// Limits this process's CPU time and address space and lowers its priority, for good: it must do nothing but
    /// compile `wasm`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn enforce(self, wasm: &Path) -> Result<(), CompileError> {
        yield_to_others().map_err(os("lower priority for", wasm))?;
        let Self { memory, cpu_seconds } = self;
        let hard = cpu_seconds.saturating_add(CPU_SECONDS_MORE);
        limit(Resource::RLIMIT_CPU, cpu_seconds, hard, wasm)?;
        let address_space = memory.saturating_add(ADDRESS_SPACE_MORE);
        limit(Resource::RLIMIT_AS, address_space, address_space, wasm)?;
        limit(Resource::RLIMIT_CORE, 0, 0, wasm)
    }
}

/// Reads a core module.
///
/// # Errors
/// When the file cannot be read, is too large, or is something else.
pub fn read(wasm: &Path) -> Result<Vec<u8>, CompileError> {
    match read_any(wasm)? {
        WasmBinary::Module(bytes) => Ok(bytes),
        WasmBinary::Component(_) => Err(CompileError::Component { path: wasm.to_owned() }),
    }
}

/// A binary by its header.
#[derive(Debug)]
pub enum WasmBinary {
    Module(Vec<u8>),
    Component(Vec<u8>),
}

/// Reads a core module or a component.
///
/// # Errors
/// As [`read`].
pub fn read_any(wasm: &Path) -> Result<WasmBinary, CompileError> {
    let length = fs::metadata(wasm).map_err(os("stat of", wasm))?.len();
    if length > MODULE_MAX {
        return Err(CompileError::TooLarge { path: wasm.to_owned(), length });
    }
    let bytes = fs::read(wasm).map_err(os("read of", wasm))?;
    if bytes.starts_with(&WASM_HEADER) {
        Ok(WasmBinary::Module(bytes))
    } else if bytes.starts_with(&COMPONENT_HEADER) {
        Ok(WasmBinary::Component(bytes))
    } else {
        Err(CompileError::NotWasm { path: wasm.to_owned() })
    }
}

/// Splits the path of the result into folder and name.
///
/// # Errors
/// When it names no file.
pub fn folder_and_name(out: &Path) -> Result<(&Path, &str), CompileError> {
    let directory = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = out
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| os("naming of", out)(io::Error::from(io::ErrorKind::InvalidFilename)))?;
    Ok((directory, name))
}

fn limit(resource: Resource, soft: u64, hard: u64, wasm: &Path) -> Result<(), CompileError> {
    setrlimit(resource, soft, hard).map_err(|errno| os("limit for", wasm)(errno.into()))
}

/// An error of the system for `path`.
pub fn os(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CompileError {
    let path = path.to_owned();
    move |source| CompileError::Os { operation, path, source }
}
