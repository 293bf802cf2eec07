//! Checks components: reads their imports and exports, and says who serves each. Runs in the shim daemon.
//!
//! Nested modules and components are validated, but only what the outermost component imports and exports counts.

use std::collections::BTreeMap;

use cwasi_abi::interfaces::{Server, served_by};
use cwasi_config::Engine;
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

use super::checked_module::{CheckedModule, ModuleError, handles, list, runs};

/// What a component may use of WebAssembly: the engine wasmtime compiles all of it. Position-independent code, of which
/// Python's and QuickJS's components consist, has constant expressions that add.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::COMPONENT_MODEL)
    .union(WasmFeatures::CM_ASYNC)
    .union(WasmFeatures::EXTENDED_CONST);
/// The package whose import lets a component open files.
const FILES: &str = "wasi:filesystem/";

/// Names of the outermost component's imports and exports, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

impl Interfaces {
    /// Reads a component without validating it.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(bytes: &[u8]) -> wasmparser::Result<Self> {
        let mut found = Self::default();
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        found.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        found.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// True if requests can come.
    #[must_use]
    pub fn handles(&self) -> bool {
        handles(&self.exports)
    }

    /// True if it is a command.
    #[must_use]
    pub fn runs(&self) -> bool {
        runs(&self.exports)
    }
}

/// Who serves an import of a component, for people; the error is why nobody does.
///
/// # Errors
/// When nobody serves it.
pub fn served(import: &str) -> Result<&'static str, &'static str> {
    match served_by(import) {
        Some(Server::Runtime) => Ok("the runtime"),
        Some(Server::Wasi) => Ok("the engine"),
        Some(Server::Network) => Ok("the engine, for destinations that cwasi.network allows"),
        None => Err(
            "nobody: a component may import WASI 0.2 and 0.3, and the interfaces of `cwasi:calls`",
        ),
    }
}

/// Reads a component with this digest, and validates it unless it is known to be valid.
pub(super) fn check(
    (bytes, digest): (&[u8], String),
    is_valid: bool,
    origin: &str,
) -> Result<CheckedModule, ModuleError> {
    let invalid = |source| ModuleError::Invalid { origin: origin.to_owned(), source };
    if !is_valid {
        Validator::new_with_features(FEATURES).validate_all(bytes).map_err(invalid)?;
    }
    let Interfaces { imports, exports } = Interfaces::read(bytes).map_err(invalid)?;
    let unserved = imports.iter().filter(|import| served_by(import).is_none());
    let unserved: Vec<String> = unserved.map(|import| format!("`{import}`")).collect();
    if !unserved.is_empty() {
        let (origin, interfaces) = (origin.to_owned(), list(&unserved));
        return Err(ModuleError::Interfaces { origin, interfaces });
    }
    Ok(CheckedModule {
        digest,
        bytes: bytes.to_vec(),
        is_component: true,
        exports,
        foreign: BTreeMap::new(),
        // Toolchains import sockets for programs that never open one: the rules refuse those when they are opened.
        sockets: Vec::new(),
        dropped_native: false,
        opens_files: imports.iter().any(|import| import.starts_with(FILES)),
        imports_prototype: false,
    })
}

/// The engine that runs the module: the one that its annotation names, the only one of a component, or the node's.
///
/// # Errors
/// For a component whose annotation names another engine than wasmtime.
pub fn engine_of(
    module: &CheckedModule,
    annotated: Option<Engine>,
    node: Engine,
    origin: &str,
) -> Result<Engine, ModuleError> {
    match annotated {
        Some(Engine::Wasmedge) if module.is_component => {
            Err(ModuleError::Component { origin: origin.to_owned() })
        }
        Some(engine) => Ok(engine),
        None if module.is_component => Ok(Engine::Wasmtime),
        None => Ok(node),
    }
}

#[cfg(test)]
mod tests {
    use super::super::module;
    use super::*;

    fn component(items: &str) -> Vec<u8> {
        wat::parse_str(format!("(component {items})")).unwrap()
    }

    const RUNS: &str = r#"
        (core module $m (func (export "run") (result i32) (i32.const 0)))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $api (export "run" (func $run)))
        (export "wasi:cli/run@0.2.6" (instance $api))"#;

    #[test]
    fn a_component_is_checked_by_its_interfaces() {
        let bytes = component(&format!(
            r#"(import "wasi:filesystem/types@0.2.6" (instance)) (import "wasi:sockets/tcp@0.2.0" (instance)) {RUNS}"#
        ));
        let checked = module::check(&bytes, "m").unwrap();
        assert!(checked.is_component && checked.opens_files && checked.sockets.is_empty());
        assert!(checked.is_command() && !checked.is_reactor());
        assert_eq!(checked.exports, ["wasi:cli/run@0.2.6"]);
        for node in Engine::ALL {
            let engine = |annotated| engine_of(&checked, annotated, node, "m");
            assert_eq!(engine(None).unwrap(), Engine::Wasmtime);
            assert_eq!(engine(Some(Engine::Wasmtime)).unwrap(), Engine::Wasmtime);
            let error = engine(Some(Engine::Wasmedge)).unwrap_err().to_string();
            assert!(error.contains("cwasi.engine=wasmtime"), "{error}");
        }
    }

    #[test]
    fn functions_and_streams_of_a_component_may_be_asynchronous() {
        let bytes = component("(type (stream u8)) (type (func async (result string)))");
        assert!(module::check(&bytes, "m").unwrap().is_component);
    }

    #[test]
    fn constant_expressions_of_a_component_may_add() {
        let sum = r#"(module (import "env" "base" (global $base i32)) (memory 1)
            (data (offset (i32.add (global.get $base) (i32.const 8))) "x"))"#;
        let bytes = component(&sum.replacen("(module", "(core module", 1));
        assert!(module::check(&bytes, "m").unwrap().is_component);
        // Not of a core module: both engines have to run it.
        let error = module::check(&wat::parse_str(sum).unwrap(), "m").unwrap_err();
        assert!(error.to_string().contains("not a valid"), "{error}");
    }

    #[test]
    fn nested_components_import_from_the_outer_one() {
        let bytes = component(r#"(component (import "print" (func)))"#);
        assert!(module::check(&bytes, "m").is_ok());
        assert_eq!(Interfaces::read(&bytes).unwrap(), Interfaces::default());
    }

    #[test]
    fn every_unserved_interface_is_named() {
        let bytes = component(
            r#"(import "wasi:keyvalue/store@0.2.0" (instance)) (import "print" (func))
               (import "wasi:cli/stdin@0.3.0-rc-2026-03-15" (instance))
               (import "cwasi:calls/calls@0.1.0" (instance)) (import "wasi:cli/stdin@0.3.0" (instance))"#,
        );
        let error = module::check(&bytes, "m").unwrap_err().to_string();
        let named = "`wasi:keyvalue/store@0.2.0`, `print`, `wasi:cli/stdin@0.3.0-rc-2026-03-15`;";
        assert!(error.contains(named), "{error}");
        assert!(!error.contains("calls@"), "{error}");
    }
}
