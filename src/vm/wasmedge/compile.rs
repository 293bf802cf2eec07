//! Ahead-of-time compilation: a module in, a native shared object out. Runs in the compiler process
//! (`cwasi-sandbox compile`).
//!
//! LLVM reads untrusted input here. It may abort, hang or exhaust memory, and then only this process ends. The
//! dynamic linker loads the native format, so all workers and containers of a function share its pages.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, setrlimit};
use wasmedge_sdk::config::{CommonConfigOptions, CompilerConfigOptions, ConfigBuilder};
use wasmedge_sdk::{Compiler, CompilerOptimizationLevel, CompilerOutputFormat};
use wasmparser::{Parser, Payload};

use cwasi_sys::process::{exit_now, yield_to_others};
use cwasi_vm::state::{self, ReservedName};

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

/// Custom section that the engine would execute as native code in any module.
const NATIVE_SECTION: &str = "wasmedge";
/// First bytes of a core module, version 1.
const WASM_HEADER: [u8; 8] = *b"\0asm\x01\0\0\0";

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
    #[error("{path} is not a WebAssembly core module", path = .path.display())]
    NotWasm { path: PathBuf },
    /// The module contains native code.
    #[error(
        "{path} has a custom section `{NATIVE_SECTION}`, which the engine would execute as native code; drop it first", path = .path.display()
    )]
    NativeCode { path: PathBuf },
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

/// Compiles `wasm` to native code in `out`, which appears complete or not at all. First limits this process's CPU
/// time and address space and lowers its priority, for good: the process must do nothing else.
///
/// # Errors
/// When the module is refused or the file cannot be written. A limit ends the process by a signal or abort.
pub fn compile(wasm: &Path, out: &Path, limits: Limits) -> Result<(), CompileError> {
    yield_to_others().map_err(os("lower priority for", wasm))?;
    let Limits { memory, cpu_seconds } = limits;
    limit(Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds.saturating_add(CPU_SECONDS_MORE), wasm)?;
    let address_space = memory.saturating_add(ADDRESS_SPACE_MORE);
    limit(Resource::RLIMIT_AS, address_space, address_space, wasm)?;
    limit(Resource::RLIMIT_CORE, 0, 0, wasm)?;
    compile_unlimited(wasm, out)
}

/// [`compile`] without limits, for tests and tools that continue afterwards.
///
/// # Errors
/// As [`compile`].
pub fn compile_unlimited(wasm: &Path, out: &Path) -> Result<(), CompileError> {
    let bytes = read(wasm)?;
    let engine = |error: &dyn std::fmt::Display| CompileError::Engine {
        path: wasm.to_owned(),
        reason: error.to_string(),
    };
    let options = CompilerConfigOptions::new()
        .optimization_level(CompilerOptimizationLevel::O2)
        .out_format(CompilerOutputFormat::Native);
    let config = ConfigBuilder::new(CommonConfigOptions::default())
        .with_compiler_config(options)
        .build()
        .map_err(|error| engine(&error))?;
    super::silence();
    let compiler = Compiler::new(Some(&config)).map_err(|error| engine(&error))?;
    let (directory, name) = parts(out)?;
    let unfinished = format!(".{name}.{}", std::process::id());
    let made = compiler
        .compile_from_bytes(bytes, &unfinished, directory)
        .map_err(|error| engine(&error))
        .and_then(|made| fs::rename(made, out).map_err(os("rename to", out)));
    if made.is_err() {
        // Removes the engine's unfinished output, if any.
        let _nothing = fs::remove_file(directory.join(format!("{unfinished}.so")));
    }
    made
}

/// Reads the module. Only a core module may reach the engine, which would execute a shared object.
fn read(wasm: &Path) -> Result<Vec<u8>, CompileError> {
    let length = fs::metadata(wasm).map_err(os("stat of", wasm))?.len();
    if length > MODULE_MAX {
        return Err(CompileError::TooLarge { path: wasm.to_owned(), length });
    }
    let bytes = fs::read(wasm).map_err(os("read of", wasm))?;
    if !bytes.starts_with(&WASM_HEADER) {
        return Err(CompileError::NotWasm { path: wasm.to_owned() });
    }
    check_sections(&bytes, wasm)?;
    let reserved = |source| CompileError::Reserved { path: wasm.to_owned(), source };
    Ok(state::expose(&bytes).map_err(reserved)?.unwrap_or(bytes))
}

/// Refuses sections with native code, which the coordinator has dropped: they would end up in our own file.
fn check_sections(bytes: &[u8], wasm: &Path) -> Result<(), CompileError> {
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| CompileError::Engine {
            path: wasm.to_owned(),
            reason: error.to_string(),
        })?;
        if matches!(payload, Payload::CustomSection(section) if section.name() == NATIVE_SECTION) {
            return Err(CompileError::NativeCode { path: wasm.to_owned() });
        }
    }
    Ok(())
}

fn parts(out: &Path) -> Result<(&Path, &str), CompileError> {
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

fn os(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CompileError {
    let path = path.to_owned();
    move |source| CompileError::Os { operation, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> (CompileError, usize) {
        let directory = tempfile::tempdir().unwrap();
        let wasm = directory.path().join("m.wasm");
        fs::write(&wasm, bytes).unwrap();
        let error = compile_unlimited(&wasm, &directory.path().join("m.so")).unwrap_err();
        (error, fs::read_dir(directory.path()).unwrap().count())
    }

    #[test]
    fn only_core_modules_reach_the_engine_and_nothing_is_left() {
        let component = b"\0asm\x0d\0\x01\0";
        for bytes in [&b""[..], b"\x7fELF\x02\x01\x01\0", component, b"\0asm\x02\0\0\0"] {
            let (error, files) = refusal(bytes);
            assert!(matches!(error, CompileError::NotWasm { .. }), "{error}");
            assert_eq!(files, 1);
        }
        for broken in [&b"\0asm\x01\0\0\0\x01\x05"[..], b"\0asm\x01\0\0\0\x01\x02\x01\x00"] {
            let (error, files) = refusal(broken);
            assert!(matches!(error, CompileError::Engine { .. }), "{error}");
            assert_eq!(files, 1);
        }
    }

    #[test]
    fn a_section_with_native_code_is_refused() {
        let mut module = wat::parse_str("(module)").unwrap();
        module.extend_from_slice(b"\0\x0c\x08wasmedge\x01\x02\x03");
        let (error, _) = refusal(&module);
        assert!(matches!(error, CompileError::NativeCode { .. }), "{error}");
    }

    #[test]
    fn valid_sections_with_an_invalid_function_are_refused() {
        let text = "(module (func (result i32)))";
        let (error, files) = refusal(&wat::parse_str(text).unwrap());
        assert!(matches!(error, CompileError::Engine { .. }), "{error}");
        assert_eq!(files, 1);
    }
}
