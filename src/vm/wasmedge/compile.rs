//! Ahead-of-time compilation: a module in, a native shared object out. Runs in the compiler process
//! (`cwasi-sandbox-wasmedge compile`).
//!
//! The dynamic linker loads the native format, so all workers and containers of a function share its pages.

use std::fs;
use std::path::Path;

use wasmedge_sdk::config::{CommonConfigOptions, CompilerConfigOptions, ConfigBuilder};
use wasmedge_sdk::{Compiler, CompilerOptimizationLevel, CompilerOutputFormat};
use wasmparser::{Parser, Payload};

use cwasi_vm::compile::{self, CompileError, Limits, folder_and_name, os};
use cwasi_vm::state;

/// Custom section that the engine would execute as native code in any module.
const NATIVE_SECTION: &str = "wasmedge";

/// Compiles `wasm` to native code in `out`, which appears complete or not at all. First limits this process for good
/// ([`Limits::enforce`]).
///
/// # Errors
/// When the module is refused or the file cannot be written. A limit ends the process by a signal or abort.
pub fn compile(wasm: &Path, out: &Path, limits: Limits) -> Result<(), CompileError> {
    limits.enforce(wasm)?;
    compile_unlimited(wasm, out)
}

/// [`compile()`] without limits, for tests and tools that continue afterwards.
///
/// # Errors
/// As [`compile()`].
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
    let (directory, name) = folder_and_name(out)?;
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
    let bytes = compile::read(wasm)?;
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
            return Err(CompileError::NativeCode {
                path: wasm.to_owned(),
                section: NATIVE_SECTION,
            });
        }
    }
    Ok(())
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
        let (error, files) = refusal(b"\0asm\x0d\0\x01\0");
        assert!(matches!(error, CompileError::Component { .. }), "{error}");
        assert_eq!(files, 1);
        for bytes in [&b""[..], b"\x7fELF\x02\x01\x01\0", b"\0asm\x02\0\0\0"] {
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
