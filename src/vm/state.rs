//! Decides what guests of a module can change, and exports it for the host. Runs in the compiler process, because it
//! reads untrusted code. Pure: bytes in, bytes out.
//!
//! An instance's state is linear memory, globals, tables, and segments that can be dropped once. If guests can change
//! only one memory and numeric globals, each of these globals gets an export, and one more export says so
//! ([`STATE_EXPORT`]). The host can then restore such an instance (`wasmedge::renewal`). Any other module stays
//! unchanged, and so do all indices and names.

use cwasi_abi::{
    GLOBAL_EXPORT, HOME_EXPORT, RESERVED_EXPORTS, STATE_EXPORT, WASI_CALLED_EXPORT, export,
};
use wasm_encoder::{ConstExpr, Encode, GlobalType, Module, RawSection, SectionId, ValType};
use wasmparser::{
    BinaryReader, BinaryReaderError, ExternalKind, GlobalSectionReader, MemoryType, Operator,
    Parser, Payload, TypeRef, Validator, WasmFeatures,
};

use super::wasi_calls;

/// Most globals that are restored before each request.
const GLOBALS_MAX: usize = 64;
/// Kind of an exported global.
const EXPORT_GLOBAL: u8 = 3;

/// A module exports a reserved name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it exports `{name}`, a name that is reserved for the runtime")]
pub struct ReservedName {
    name: String,
}

/// Returns `wasm` with its state exported; `None` if that is impossible, or if `wasm` is invalid, which the compiler
/// reports better.
///
/// # Errors
/// When it exports a reserved name: it could pretend to have exported its state.
pub fn expose(wasm: &[u8]) -> Result<Option<Vec<u8>>, ReservedName> {
    let Ok(found) = ModuleFacts::read(wasm) else { return Ok(None) };
    if let Some(name) = found.reserved {
        return Err(ReservedName { name });
    }
    if !found.resettable() || !is_valid(wasm) {
        return Ok(None);
    }
    Ok(match wasi_calls::note(wasm) {
        Some((noting, called)) if is_valid(&noting) => ModuleFacts::read(&noting)
            .and_then(|found| rewritten(&noting, &found, Some(called)))
            .ok(),
        _ => rewritten(wasm, &found, None).ok(),
    })
}

/// True if it is valid without proposals after version 2.0, whose state is not examined here.
fn is_valid(wasm: &[u8]) -> bool {
    Validator::new_with_features(WasmFeatures::WASM2).validate_all(wasm).is_ok()
}

/// The relevant facts of a module.
#[derive(Default)]
struct ModuleFacts {
    /// Number of globals, if there is a section for them.
    globals: Option<u32>,
    /// Indices of mutable globals.
    mutable: Vec<u32>,
    memories: Vec<MemoryType>,
    exports_memory: bool,
    /// True if guests can change something else.
    other: bool,
    reserved: Option<String>,
}

impl ModuleFacts {
    fn read(wasm: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut found = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        // An import other than a function is shared with its exporter.
                        found.other |= !matches!(import?.ty, TypeRef::Func(_));
                    }
                }
                Payload::MemorySection(section) => {
                    found.memories = section.into_iter().collect::<Result<_, _>>()?;
                }
                Payload::TagSection(_) => found.other = true,
                Payload::GlobalSection(section) => found.globals(section)?,
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        found.export(export.name, export.kind);
                    }
                }
                Payload::CodeSectionEntry(body) => {
                    for operator in body.get_operators_reader()? {
                        found.other |= changes_tables_or_segments(&operator?);
                    }
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn globals(&mut self, section: GlobalSectionReader<'_>) -> Result<(), BinaryReaderError> {
        self.globals = Some(section.count());
        for (index, global) in (0..).zip(section) {
            let ty = global?.ty;
            if ty.mutable {
                self.mutable.push(index);
                self.other |= ty.content_type.is_reference_type() || ty.shared;
            }
        }
        Ok(())
    }

    fn export(&mut self, name: &str, kind: ExternalKind) {
        self.exports_memory |= name == export::MEMORY && kind == ExternalKind::Memory;
        if name.starts_with(RESERVED_EXPORTS) && name != HOME_EXPORT {
            self.reserved = Some(name.to_owned());
        }
    }

    /// True if guests can change only memory and mutable globals, and the host can access them.
    fn resettable(&self) -> bool {
        let one = matches!(self.memories[..], [memory] if !memory.shared && !memory.memory64);
        one && self.exports_memory && !self.other && self.mutable.len() <= GLOBALS_MAX
    }
}

const fn changes_tables_or_segments(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::TableSet { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. }
            | Operator::TableInit { .. }
            | Operator::ElemDrop { .. }
            | Operator::DataDrop { .. }
    )
}

/// Returns `wasm` with one more global, and the exports. `called`: the global that records calls of WASI.
fn rewritten(
    wasm: &[u8],
    found: &ModuleFacts,
    called: Option<u32>,
) -> Result<Vec<u8>, BinaryReaderError> {
    let (mark, mut exports) = (marker(), Vec::new());
    export_global(STATE_EXPORT, found.globals.unwrap_or(0), &mut exports);
    if let Some(called) = called {
        export_global(WASI_CALLED_EXPORT, called, &mut exports);
    }
    for (number, index) in found.mutable.iter().enumerate() {
        export_global(&format!("{GLOBAL_EXPORT}{number}"), *index, &mut exports);
    }
    let added =
        u32::try_from(found.mutable.len()).unwrap_or(u32::MAX) + 1 + u32::from(called.is_some());
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let Some((id, range)) = payload?.as_section() else { continue };
        let data = wasm.get(range).unwrap_or_default();
        if id == SectionId::Global as u8 {
            append(&mut module, id, data, (1, &mark))?;
        } else if id == SectionId::Export as u8 {
            // Globals come before exports, which this module has: its memory's.
            if found.globals.is_none() {
                append(&mut module, SectionId::Global as u8, &[0], (1, &mark))?;
            }
            append(&mut module, id, data, (added, &exports))?;
        } else {
            module.section(&RawSection { id, data });
        }
    }
    Ok(module.finish())
}

/// A global whose existence is the information.
fn marker() -> Vec<u8> {
    let mut bytes = Vec::new();
    GlobalType { val_type: ValType::I32, mutable: false, shared: false }.encode(&mut bytes);
    ConstExpr::i32_const(1).encode(&mut bytes);
    bytes
}

fn export_global(name: &str, index: u32, exports: &mut Vec<u8>) {
    name.encode(exports);
    exports.push(EXPORT_GLOBAL);
    index.encode(exports);
}

/// A section of a vector with `count` more entries.
fn append(
    module: &mut Module,
    id: u8,
    data: &[u8],
    (count, entries): (u32, &[u8]),
) -> Result<(), BinaryReaderError> {
    let mut reader = BinaryReader::new(data, 0);
    let before = reader.read_var_u32()?;
    let mut bytes = Vec::with_capacity(data.len() + entries.len() + 1);
    before.saturating_add(count).encode(&mut bytes);
    bytes.extend_from_slice(data.get(reader.current_position()..).unwrap_or_default());
    bytes.extend_from_slice(entries);
    module.section(&RawSection { id, data: &bytes });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposed(wat: &str) -> Option<String> {
        let wasm = wat::parse_str(wat).unwrap();
        let exposed = expose(&wasm).unwrap()?;
        wasmparser::validate(&exposed).unwrap();
        Some(wasmprinter::print_bytes(&exposed).unwrap())
    }

    #[test]
    fn mutable_globals_are_exported_and_everything_keeps_its_index() {
        let text = exposed(
            r#"(module (import "a" "f" (func)) (memory (export "memory") 1) (table 1 funcref)
                (global i32 (i32.const 1)) (global (mut i64) (i64.const 2)) (global (mut v128) (v128.const i64x2 3 4))
                (func (export "g") (global.set 1 (i64.const 5)) call 0) (elem (i32.const 0) 0) (data (i32.const 0) "x"))"#,
        )
        .unwrap();
        for part in [
            r#"(export "memory" (memory 0))"#,
            r#"(export "g" (func 1))"#,
            r#"(export "cwasi.state" (global 3))"#,
            r#"(export "cwasi.global.0" (global 1))"#,
            r#"(export "cwasi.global.1" (global 2))"#,
            "global.set 1",
            "call 0",
        ] {
            assert!(text.contains(part), "{part} missing in {text}");
        }
        let without = exposed(r#"(module (memory (export "memory") 1))"#).unwrap();
        assert!(without.contains(r#"(export "cwasi.state" (global 0))"#), "{without}");
        let mut empty = wat::parse_str(r#"(module (memory (export "memory") 1))"#).unwrap();
        let exports = empty.iter().rposition(|byte| *byte == 7).unwrap();
        empty.splice(exports..exports, [6, 1, 0]);
        wasmparser::validate(&expose(&empty).unwrap().unwrap()).unwrap();
    }

    #[test]
    fn modules_with_other_state_are_left_alone() {
        let table = |text: &str| {
            format!(
                r#"(module (memory (export "memory") 1) (table 9 funcref) (elem $e func 0) (data $d "x") (func {text}))"#
            )
        };
        let zeros = "(i32.const 0) (i32.const 0) (i32.const 0)";
        for wat in [
            table("(table.set 0 (i32.const 0) (ref.null func))"),
            table("(drop (table.grow 0 (ref.null func) (i32.const 1)))"),
            table("(table.fill 0 (i32.const 0) (ref.null func) (i32.const 1))"),
            table(&format!("(table.copy {zeros})")),
            table(&format!("(table.init $e {zeros})")),
            table("(elem.drop $e)"),
            table("(data.drop $d)"),
            r#"(module (memory (export "memory") 1) (global (mut funcref) (ref.null func)))"#
                .into(),
            r#"(module (import "a" "g" (global (mut i32))) (memory (export "memory") 1))"#.into(),
            r#"(module (import "a" "t" (table 1 funcref)) (memory (export "memory") 1))"#.into(),
            r#"(module (import "a" "m" (memory 1)) (export "memory" (memory 0)))"#.into(),
            r#"(module (memory 1))"#.into(),
            r#"(module (memory (export "other") 1))"#.into(),
            r#"(module (memory (export "memory") 1) (memory 1))"#.into(),
            r#"(module (memory (export "memory") 1 2 shared))"#.into(),
            r#"(module (memory (export "memory") 1) (tag))"#.into(),
            format!(
                r#"(module (memory (export "memory") 1) {})"#,
                "(global (mut i32) (i32.const 0))".repeat(GLOBALS_MAX + 1)
            ),
        ] {
            assert_eq!(exposed(&wat), None, "{wat}");
        }
        assert!(exposed(&table(&format!("(memory.init $d {zeros})"))).is_some());
        assert_eq!(expose(b"no module"), Ok(None));
    }

    #[test]
    fn a_module_must_not_export_our_names() {
        for name in ["cwasi.state", "cwasi.global.0", "cwasi.later"] {
            let wat = format!(r#"(module (memory (export "memory") 1) (func (export "{name}")))"#);
            let refused = expose(&wat::parse_str(&wat).unwrap()).unwrap_err();
            assert!(refused.to_string().contains(name), "{refused}");
        }
        let home = r#"(module (memory (export "memory") 1) (func (export "cwasi.home")))"#;
        assert!(exposed(home).is_some());
    }
}
