//! Ahead-of-time compilation: a module or component in, native code out.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use cwasi_abi::interfaces::is_wasi_3;
use cwasi_vm::compile::{CompileError, WasmBinary, folder_and_name, os, read_any};
use cwasi_vm::{linked_calls, state};
use cwasi_wasmtime_artifact::{Kind, Trailer, settings};
use wasmparser::{DataKind, Operator, Parser, Payload};
use wasmtime::{Engine, OptLevel};

use crate::processor;

/// Compiles `wasm` to native code in `out`, which appears complete or not at all. `features` are those of the processor
/// that it is for; without them it is this machine's.
///
/// # Errors
/// When the module is refused or the file cannot be written.
pub fn compile(wasm: &Path, out: &Path, features: Option<&[String]>) -> Result<(), CompileError> {
    let binary = read_any(wasm)?;
    let refused = |error: &dyn std::fmt::Display| CompileError::Engine {
        path: wasm.to_owned(),
        reason: error.to_string(),
    };
    let reserved = |source| CompileError::Reserved { path: wasm.to_owned(), source };
    let (code, trailer) = match binary {
        WasmBinary::Module(bytes) => {
            let bytes = state::expose(&bytes).map_err(reserved)?.unwrap_or(bytes);
            let bytes = linked_calls::wrap(&bytes).unwrap_or(bytes);
            let image_end = image_end(&bytes).map_err(|error| refused(&error))?;
            let kind = Kind::Module;
            let code = engine(kind, features).and_then(|engine| engine.precompile_module(&bytes));
            (code, Trailer { kind, image_end })
        }
        WasmBinary::Component(bytes) => {
            let (kind, code) = component(&bytes, features);
            (code, Trailer { kind, image_end: 0 })
        }
    };
    let code = code.map_err(|error| refused(&format!("{error:#}")))?;
    let (directory, name) = folder_and_name(out)?;
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    let made = write(&unfinished, &code, trailer)
        .and_then(|()| fs::rename(&unfinished, out).map_err(os("rename to", out)));
    if made.is_err() {
        let _nothing = fs::remove_file(&unfinished);
    }
    made
}

fn engine(kind: Kind, features: Option<&[String]>) -> wasmtime::Result<Engine> {
    let mut config = settings(kind);
    if let Some(features) = features {
        processor::restrict(&mut config, features).map_err(wasmtime::Error::msg)?;
    }
    config.cranelift_opt_level(OptLevel::Speed);
    Engine::new(&config)
}

/// Compiles a component, without support for asynchronous functions if it has none.
fn component(bytes: &[u8], features: Option<&[String]>) -> (Kind, wasmtime::Result<Vec<u8>>) {
    let compiled =
        |kind| engine(kind, features).and_then(|engine| engine.precompile_component(bytes));
    // It is validated before anything is compiled, so a second attempt costs little.
    if !imports_wasi_3(bytes)
        && let Ok(code) = compiled(Kind::Component)
    {
        return (Kind::Component, Ok(code));
    }
    (Kind::AsyncComponent, compiled(Kind::AsyncComponent))
}

/// True if the outermost component imports an interface of WASI 0.3; nothing of a damaged one is compiled anyway.
fn imports_wasi_3(bytes: &[u8]) -> bool {
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload {
            Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth = depth.saturating_sub(1),
            Ok(Payload::ComponentImportSection(section)) if depth == 0 => {
                if section.into_iter().flatten().any(|import| is_wasi_3(import.name.name)) {
                    return true;
                }
            }
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

fn write(path: &Path, code: &[u8], trailer: Trailer) -> Result<(), CompileError> {
    let mut file = File::create(path).map_err(os("create", path))?;
    file.write_all(code)
        .and_then(|()| file.write_all(&trailer.to_bytes()))
        .map_err(os("write of", path))
}

/// Behind the last byte of linear memory that the module initializes; all of it if that depends on something else.
fn image_end(wasm: &[u8]) -> Result<u64, wasmparser::BinaryReaderError> {
    let mut end = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let Payload::DataSection(section) = payload? else { continue };
        for data in section {
            let data = data?;
            let DataKind::Active { offset_expr, .. } = data.kind else { continue };
            let start = match offset_expr.get_operators_reader().read()? {
                Operator::I32Const { value } => u64::from(value.cast_unsigned()),
                _ => u64::MAX,
            };
            end = end.max(start.saturating_add(data.data.len() as u64));
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(bytes: &[u8]) -> (Result<Trailer, CompileError>, usize) {
        let directory = tempfile::tempdir().unwrap();
        let (wasm, out) = (directory.path().join("m.wasm"), directory.path().join("m.cwasm"));
        fs::write(&wasm, bytes).unwrap();
        let made = compile(&wasm, &out, None)
            .map(|()| Trailer::read(&File::open(&out).unwrap()).unwrap().unwrap());
        (made, fs::read_dir(directory.path()).unwrap().count())
    }

    #[test]
    fn only_wasm_is_compiled_and_nothing_is_left() {
        for bytes in [&b""[..], b"\x7fELF\x02\x01\x01\0", b"\0asm\x02\0\0\0"] {
            let (made, files) = compiled(bytes);
            assert!(matches!(made, Err(CompileError::NotWasm { .. })), "{made:?}");
            assert_eq!(files, 1);
        }
        let invalid = wat::parse_str("(module (func (result i32)))").unwrap();
        let component = b"\0asm\x0d\0\x01\0\x01\x05";
        for broken in [&b"\0asm\x01\0\0\0\x01\x05"[..], component, &invalid] {
            let (made, files) = compiled(broken);
            assert!(matches!(made, Err(CompileError::Engine { .. })), "{made:?}");
            assert_eq!(files, 1);
        }
        let reserved = r#"(module (func (export "cwasi.state")))"#;
        let (made, _) = compiled(&wat::parse_str(reserved).unwrap());
        assert!(matches!(made, Err(CompileError::Reserved { .. })), "{made:?}");
    }

    #[test]
    fn code_is_for_the_processor_that_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (wasm, out) = (directory.path().join("m.wasm"), directory.path().join("m.cwasm"));
        let module =
            r#"(module (func (export "f") (param i64) (result i64) (i64.popcnt (local.get 0))))"#;
        fs::write(&wasm, wat::parse_str(module).unwrap()).unwrap();
        compile(&wasm, &out, Some(&[])).unwrap();
        let least = fs::read(&out).unwrap();
        compile(&wasm, &out, None).unwrap();
        if cfg!(target_arch = "x86_64") {
            assert_ne!(least, fs::read(&out).unwrap(), "an instruction counts bits");
        }
        let error = compile(&wasm, &out, Some(&["mmx2".to_owned()])).unwrap_err();
        assert!(error.to_string().contains("no feature `mmx2`"), "{error}");
    }

    #[test]
    fn the_trailer_names_a_component() {
        for (items, kind) in [
            ("", Kind::Component),
            (r#"(import "wasi:random/random@0.2.0" (instance))"#, Kind::Component),
            (r#"(import "wasi:random/random@0.3.0" (instance))"#, Kind::AsyncComponent),
            ("(type (future))", Kind::AsyncComponent),
            (r#"(component (type (stream u8)))"#, Kind::AsyncComponent),
        ] {
            let component = wat::parse_str(format!("(component {items})")).unwrap();
            assert_eq!(compiled(&component).0.unwrap(), Trailer { kind, image_end: 0 }, "{items}");
        }
    }

    #[test]
    fn a_component_of_components_is_compiled() {
        let greeter = r#"(component $greeter
            (core module $m (memory (export "m") 1)
                (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8))
                (func (export "greet") (param i32 i32) (result i32) (local.get 1)))
            (core instance $i (instantiate $m))
            (func (export "greet") (param "name" string) (result u32)
                (canon lift (core func $i "greet") (memory (core memory $i "m")) (realloc (core func $i "realloc")))))"#;
        let caller = r#"(component $caller
            (import "greet" (func $greet (param "name" string) (result u32)))
            (core module $memory (memory (export "m") 1))
            (core instance $memory (instantiate $memory))
            (core func $greet (canon lower (func $greet) (memory (core memory $memory "m"))))
            (core module $m (import "" "greet" (func $greet (param i32 i32) (result i32)))
                (func (export "run") (result i32) (call $greet (i32.const 0) (i32.const 3))))
            (core instance $i (instantiate $m
                (with "" (instance (export "greet" (func $greet))))))
            (func (export "run") (result u32) (canon lift (core func $i "run"))))"#;
        let composed = format!(
            r#"(component {greeter} {caller} (instance $g (instantiate $greeter))
                (instance $c (instantiate $caller (with "greet" (func $g "greet"))))
                (export "run" (func $c "run")))"#
        );
        let (made, _) = compiled(&wat::parse_str(composed).unwrap());
        assert_eq!(made.unwrap().kind, Kind::Component);
    }

    #[test]
    fn the_trailer_says_where_initialized_memory_ends() {
        for (data, end) in [
            ("", 0),
            (r#"(data (i32.const 16) "abc") (data (i32.const 4) "x")"#, 19),
            (r#"(data "passive")"#, 0),
            (r#"(global $g i32 (i32.const 8)) (data (global.get $g) "x")"#, u64::MAX),
        ] {
            let module = wat::parse_str(format!("(module (memory 1) {data})")).unwrap();
            assert_eq!(
                compiled(&module).0.unwrap(),
                Trailer { kind: Kind::Module, image_end: end },
                "{data}"
            );
        }
    }
}
