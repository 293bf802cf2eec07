//! Checks modules. Bytes from an image are untrusted until this file has read them. Runs in the shim daemon.
//!
//! The engine would run an ELF file, or the custom section `wasmedge` of any module, as native code.
//!
//! Invariant: only core modules without that section pass, and components ([`super::component`]), which only wasmtime
//! runs. Only the result is compiled.

use std::collections::BTreeMap;

use cwasi_abi::{IMPORT_MODULE, RESERVED_EXPORTS, import, prototype};
use sha2::{Digest, Sha256};
use wasm_encoder::{
    EntityType, ImportSection, Module as Encoder, RawSection, TypeSection, ValType,
};
use wasmparser::{
    ExternalKind, FuncType, Import, Parser, Payload, TypeRef, Validator, WasmFeatures,
};

pub use super::checked_module::{CheckedModule, MODULE_MAX, ModuleError};
use super::checked_module::{IMPORTS_SHOWN, list};
use super::component;
use cwasi_wire::egress::needs_egress;

/// First bytes of every WebAssembly binary.
pub const MAGIC: &[u8; 4] = b"\0asm";
/// The custom section that the engine would execute as native code.
const NATIVE_SECTION: &str = "wasmedge";
const WASI_MODULE: &str = "wasi_snapshot_preview1";

/// Reads, validates and cleans a module or component; `origin` names it in errors.
///
/// # Errors
/// When it is not valid, or imports what the host does not have.
pub fn check(bytes: &[u8], origin: &str) -> Result<CheckedModule, ModuleError> {
    check_unless(|_digest| false, bytes, origin)
}

/// The same, but does not validate bytes whose sha256 is that of a module that was compiled before: this takes longer
/// than all else for a module whose code is known.
///
/// # Errors
/// As [`check`].
pub fn check_unless(
    was_compiled: impl FnOnce(&str) -> bool,
    bytes: &[u8],
    origin: &str,
) -> Result<CheckedModule, ModuleError> {
    let origin_of = || origin.to_owned();
    let length = bytes.len() as u64;
    if length > MODULE_MAX {
        return Err(ModuleError::TooLarge { origin: origin_of(), length });
    }
    if !bytes.starts_with(MAGIC) {
        return Err(ModuleError::NoModule { origin: origin_of(), hint: hint(bytes) });
    }
    let digest = hex::encode(Sha256::digest(bytes));
    let is_valid = was_compiled(&digest);
    if Parser::is_component(bytes) {
        return component::check((bytes, digest), is_valid, origin);
    }
    let invalid = |source| ModuleError::Invalid { origin: origin_of(), source };
    if !is_valid {
        Validator::new_with_features(WasmFeatures::WASM2).validate_all(bytes).map_err(invalid)?;
    }
    let read = read(bytes).map_err(invalid)?;
    if !read.unresolved.is_empty() {
        return Err(ModuleError::Imports { origin: origin_of(), imports: read.unresolved_list() });
    }
    if let Some(name) = read.reserved {
        return Err(ModuleError::Reserved { origin: origin_of(), name });
    }
    let (bytes, digest) = match read.clean {
        Some(clean) => {
            let digest = hex::encode(Sha256::digest(&clean));
            (clean, digest)
        }
        None => (bytes.to_vec(), digest),
    };
    Ok(CheckedModule {
        digest,
        bytes,
        is_component: false,
        exports: read.exports,
        foreign: read.foreign,
        sockets: read.sockets,
        dropped_native: read.dropped_native,
        opens_files: read.opens_files,
        imports_prototype: read.imports_prototype,
    })
}

#[derive(Default)]
struct Read {
    exports: Vec<String>,
    foreign: BTreeMap<String, BTreeMap<String, String>>,
    sockets: Vec<String>,
    unresolved: BTreeMap<String, ()>,
    /// A reserved export name.
    reserved: Option<String>,
    /// The module without its native section, if it had one.
    clean: Option<Vec<u8>>,
    dropped_native: bool,
    opens_files: bool,
    imports_prototype: bool,
}

impl Read {
    fn import(&mut self, import: Import<'_>, types: &[FuncType]) {
        match import.module {
            WASI_MODULE if needs_egress(import.name) => {
                if self.sockets.len() < IMPORTS_SHOWN {
                    self.sockets.push(import.name.to_owned());
                }
            }
            // Every other function on files needs a descriptor from `path_open`, or reads a directory.
            WASI_MODULE => {
                self.opens_files |= import.name.starts_with("path_") || import.name == "fd_readdir";
            }
            IMPORT_MODULE if import::parameters(import.name).is_some() => {}
            IMPORT_MODULE => {
                self.unresolved.insert(import_text(&import, types), ());
            }
            prototype::IMPORT_MODULE if import.name == prototype::FUNC_CONNECT => {
                self.imports_prototype = true;
            }
            module => {
                let text = import_text(&import, types);
                let names = self.foreign.entry(module.to_owned()).or_default();
                names.insert(import.name.to_owned(), text);
            }
        }
    }

    fn unresolved_list(&self) -> String {
        list(&self.unresolved.keys().cloned().collect::<Vec<_>>())
    }
}

fn read(bytes: &[u8]) -> wasmparser::Result<Read> {
    let mut read = Read::default();
    let mut types = Vec::new();
    let mut encoder = Encoder::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
        match &payload {
            Payload::TypeSection(section) => {
                for ty in section.clone().into_iter_err_on_gc_types() {
                    types.push(ty?);
                }
            }
            Payload::ImportSection(section) => {
                for import in section.clone().into_imports() {
                    read.import(import?, &types);
                }
            }
            Payload::ExportSection(section) => {
                for export in section.clone() {
                    let export = export?;
                    if export.name.starts_with(RESERVED_EXPORTS) {
                        read.reserved = Some(export.name.to_owned());
                    }
                    if export.kind == ExternalKind::Func {
                        read.exports.push(export.name.to_owned());
                    }
                }
            }
            Payload::CustomSection(section) if section.name() == NATIVE_SECTION => {
                read.dropped_native = true;
                continue;
            }
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            encoder.section(&RawSection { id, data: &bytes[range] });
        }
    }
    if read.dropped_native {
        read.clean = Some(encoder.finish());
    }
    Ok(read)
}

/// Text of an import: `(import "fn_utils" "f" (func (param i32)))`.
fn import_text(import: &Import<'_>, types: &[FuncType]) -> String {
    let plain = || format!("`{}.{}`", import.module, import.name);
    let TypeRef::Func(index) = import.ty else { return plain() };
    let Some(ty) = usize::try_from(index).ok().and_then(|index| types.get(index)) else {
        return plain();
    };
    printed(import, ty).unwrap_or_else(plain)
}

/// The import, printed as the only item of a module.
fn printed(import: &Import<'_>, ty: &FuncType) -> Option<String> {
    let values = |types: &[wasmparser::ValType]| {
        types.iter().map(|ty| ValType::try_from(*ty).ok()).collect::<Option<Vec<_>>>()
    };
    let mut types = TypeSection::new();
    types.ty().function(values(ty.params())?, values(ty.results())?);
    let mut imports = ImportSection::new();
    imports.import(import.module, import.name, EntityType::Function(0));
    let mut module = Encoder::new();
    module.section(&types).section(&imports);
    let text = wasmprinter::print_bytes(module.finish()).ok()?;
    let line = |start| text.lines().map(str::trim).find(|line| line.starts_with(start));
    // `(type (;0;) (func …))` has the type that `(import … (func (;0;) (type 0)))` names.
    let ty = line("(type")?.strip_prefix("(type (;0;) ")?.strip_suffix(')')?;
    Some(format!("`{}`", line("(import")?.replace("(func (;0;) (type 0))", ty)))
}

fn hint(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x7f, b'E', b'L', b'F', ..] => {
            " (it is an ELF file: native code is never loaded from an image)"
        }
        [b'(', ..] => " (it looks like WebAssembly text: compile it to binary first)",
        [] => " (it is empty)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, CustomSection, ExportKind, ExportSection, Function, FunctionSection,
    };

    use cwasi_config::Engine;

    use super::*;

    fn module(import_from: Option<(&str, &str)>, native: bool) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let mut module = Encoder::new();
        module.section(&types);
        if let Some((from, name)) = import_from {
            let mut imports = ImportSection::new();
            imports.import(from, name, EntityType::Function(0));
            module.section(&imports);
        }
        let mut functions = FunctionSection::new();
        functions.function(0);
        let mut exports = ExportSection::new();
        exports.export("_start", ExportKind::Func, u32::from(import_from.is_some()));
        let mut body = Function::new([]);
        body.instructions().end();
        let mut code = CodeSection::new();
        code.function(&body);
        module.section(&functions).section(&exports).section(&code);
        if native {
            module.section(&CustomSection {
                name: NATIVE_SECTION.into(),
                data: b"machine code".into(),
            });
        }
        module.finish()
    }

    #[test]
    fn only_wasmedge_gets_a_way_home() {
        let checked = || check(&module(None, false), "m").unwrap();
        let prepared = |engine, embeds| checked().prepared_for(engine, embeds, "m").unwrap().digest;
        let (plain, home) = (checked().digest, checked().with_home("m").unwrap().digest);
        assert_eq!(prepared(Engine::Wasmtime, true), plain);
        assert_eq!(prepared(Engine::Wasmedge, false), plain);
        assert_eq!(prepared(Engine::Wasmedge, true), home);
    }

    #[test]
    fn a_core_module_passes_unchanged() {
        let bytes = module(Some((WASI_MODULE, "fd_write")), false);
        let checked = check(&bytes, "m").unwrap();
        assert_eq!((checked.bytes, checked.exports), (bytes, vec!["_start".to_owned()]));
    }

    #[test]
    fn native_code_is_dropped_and_nothing_else() {
        let checked = check(&module(None, true), "m").unwrap();
        assert!(checked.dropped_native);
        assert_eq!(checked.bytes, module(None, false));
    }

    #[test]
    fn a_module_that_was_compiled_before_is_read_as_any_other() {
        let valid = module(Some((WASI_MODULE, "path_open")), true);
        let (one, other) =
            (check(&valid, "m").unwrap(), check_unless(|_| true, &valid, "m").unwrap());
        assert_eq!(
            (one.digest, one.exports, one.opens_files, one.dropped_native),
            (other.digest, other.exports, other.opens_files, other.dropped_native)
        );
        let digest = hex::encode(Sha256::digest(&valid));
        let asked = |found: &str| found == digest;
        check_unless(asked, &valid, "m").unwrap();
        // Of another digest, so it is validated.
        let invalid = wat::parse_str("(module (func (result i32)))").unwrap();
        check(&invalid, "m").unwrap_err();
        check_unless(asked, &invalid, "m").unwrap_err();
    }

    #[test]
    fn imports_from_other_modules_are_kept_as_text() {
        let wat = r#"(module (import "fn_utils" "f" (func (param i32 f64) (result i64)))
            (import "fn_utils" "m" (memory 1)) (import "geo" "g" (func)))"#;
        let foreign = check(&wat::parse_str(wat).unwrap(), "m").unwrap().foreign;
        let text = r#"`(import "fn_utils" "f" (func (param i32 f64) (result i64)))`"#;
        assert_eq!(foreign["fn_utils"]["f"], text);
        assert_eq!(foreign["fn_utils"]["m"], "`fn_utils.m`");
        assert_eq!(foreign["geo"]["g"], r#"`(import "geo" "g" (func))`"#);
    }

    #[test]
    fn sockets_beyond_the_standard_are_named() {
        let sockets = |name| check(&module(Some((WASI_MODULE, name)), false), "m").unwrap().sockets;
        assert_eq!(sockets("sock_open"), ["sock_open"]);
        assert_eq!(sockets("sock_send"), [""; 0]);
        assert_eq!(sockets("fd_write"), [""; 0]);
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let reserved = wat::parse_str(r#"(module (func (export "cwasi.home")))"#).unwrap();
        for (bytes, part) in [
            (b"\x7fELF....".to_vec(), "ELF"),
            (b"(module)".to_vec(), "text"),
            (Vec::new(), "empty"),
            (b"\0asm\x0d\0\x01\0\xff".to_vec(), "not a valid"),
            (b"\0asm\x01\0\0\0\xff".to_vec(), "not a valid"),
            (module(Some(("cwasi", "later")), false), r#"(import "cwasi" "later" (func))"#),
            (reserved, "exports `cwasi.home`, a name that is reserved for the runtime"),
        ] {
            let error = check(&bytes, "m").unwrap_err().to_string();
            assert!(error.contains(part), "{part} missing in: {error}");
        }
    }
}
