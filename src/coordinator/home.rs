//! Appends `cwasi.home`, an empty exported function, to a module that embeds others in WasmEdge. Runs in the shim
//! daemon.
//!
//! Entering this function leads the engine back into the caller (docs/embedding.md, `vm::trampoline`).
//!
//! Invariant: entries are added only at the ends of four sections, so every index stays the same.

use cwasi_abi::HOME_EXPORT;
use wasm_encoder::{Encode, Module, RawSection, SectionId};
use wasmparser::{BinaryReader, BinaryReaderError, Parser, Payload, TypeRef};

/// Binary form of an empty function type.
const EMPTY_TYPE: [u8; 3] = [0x60, 0, 0];
/// Binary form of an empty function body, with its length.
const EMPTY_BODY: [u8; 3] = [2, 0, 0x0b];
/// Kind of an exported function.
const EXPORT_FUNCTION: u8 = 0;

/// An unchanged section with its id.
struct Section<'a> {
    id: u8,
    data: &'a [u8],
}

/// Appends the export to `wasm`, a valid module without [`HOME_EXPORT`].
///
/// # Errors
/// When `wasm` is not a valid module.
pub fn append_home(wasm: &[u8]) -> Result<Vec<u8>, BinaryReaderError> {
    let mut sections = Vec::new();
    let mut functions = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    functions += u32::from(matches!(import?.ty, TypeRef::Func(_)));
                }
            }
            Payload::FunctionSection(section) => {
                functions = functions.saturating_add(section.count());
            }
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            sections.push(Section { id, data: wasm.get(range).unwrap_or_default() });
        }
    }
    let types = match find(&sections, SectionId::Type) {
        Some(section) => BinaryReader::new(section.data, 0).read_var_u32()?,
        None => 0,
    };
    let mut function = Vec::new();
    types.encode(&mut function);
    let mut export = Vec::new();
    HOME_EXPORT.encode(&mut export);
    export.push(EXPORT_FUNCTION);
    functions.encode(&mut export);
    let additions = [
        (SectionId::Type, EMPTY_TYPE.to_vec()),
        (SectionId::Function, function),
        (SectionId::Export, export),
        (SectionId::Code, EMPTY_BODY.to_vec()),
    ];
    write(&sections, &additions)
}

fn find<'a>(sections: &'a [Section<'a>], id: SectionId) -> Option<&'a Section<'a>> {
    sections.iter().find(|section| section.id == id as u8)
}

/// Writes all sections, each with its entry of `additions`. Inserts missing sections in order.
fn write(
    sections: &[Section<'_>],
    additions: &[(SectionId, Vec<u8>)],
) -> Result<Vec<u8>, BinaryReaderError> {
    let mut module = Module::new();
    let mut left = additions.iter().peekable();
    for section in sections {
        while let Some((id, entry)) = left.next_if(|(id, _)| comes_before(*id as u8, section.id)) {
            append(&mut module, *id as u8, &[], entry)?;
        }
        match left.next_if(|(id, _)| *id as u8 == section.id) {
            Some((id, entry)) => append(&mut module, *id as u8, section.data, entry)?,
            None => {
                module.section(&RawSection { id: section.id, data: section.data });
            }
        }
    }
    for (id, entry) in left {
        append(&mut module, *id as u8, &[], entry)?;
    }
    Ok(module.finish())
}

/// Writes a section of a vector with one more entry; `data` is empty for a missing section.
fn append(module: &mut Module, id: u8, data: &[u8], entry: &[u8]) -> Result<(), BinaryReaderError> {
    let (count, entries) = if data.is_empty() {
        (0, data)
    } else {
        let mut reader = BinaryReader::new(data, 0);
        let count = reader.read_var_u32()?;
        (count, data.get(reader.current_position()..).unwrap_or_default())
    };
    let mut bytes = Vec::with_capacity(data.len() + entry.len() + 1);
    count.saturating_add(1).encode(&mut bytes);
    bytes.extend_from_slice(entries);
    bytes.extend_from_slice(entry);
    module.section(&RawSection { id, data: &bytes });
    Ok(())
}

/// True if section `a` comes before section `b`. Custom sections may be anywhere.
fn comes_before(a: u8, b: u8) -> bool {
    let rank = |id| match id {
        _ if id == SectionId::Tag as u8 => 55,
        _ if id == SectionId::DataCount as u8 => 95,
        id => u16::from(id) * 10,
    };
    b != SectionId::Custom as u8 && rank(a) < rank(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wat: &str) -> String {
        let wasm = wat::parse_str(wat).unwrap();
        let with_home = append_home(&wasm).unwrap();
        wasmparser::validate(&with_home).unwrap();
        wasmprinter::print_bytes(&with_home).unwrap()
    }

    #[test]
    fn an_export_is_added_whatever_sections_there_are() {
        for wat in [
            "(module)",
            "(module (memory 1))",
            r#"(module (import "a" "f" (func (param i32))))"#,
            r#"(module (import "a" "f" (func)) (func (export "g")) (memory 1) (data "x"))"#,
            r#"(module (memory 1) (data $d "x") (func (memory.init $d (i32.const 0) (i32.const 0) (i32.const 0))))"#,
            r#"(module (table 1 funcref) (global i32 (i32.const 0)) (func $f) (start $f) (elem (i32.const 0) $f))"#,
        ] {
            let text = check(wat);
            assert!(text.contains(r#"(export "cwasi.home" (func"#), "{text}");
        }
    }

    #[test]
    fn everything_else_keeps_its_index_and_name() {
        let text = check(
            r#"(module $named (import "a" "f" (func $f (result i32))) (func $g (export "g") (result i32) call $f)
                (func (export "h") (result i32) call $g))"#,
        );
        for part in
            [r#"(export "g" (func $g))"#, "call $f", "call $g", r#"(export "cwasi.home" (func 3))"#]
        {
            assert!(text.contains(part), "{part} missing in {text}");
        }
    }

    #[test]
    fn counts_that_are_no_numbers_of_entries_never_overflow() {
        let import = b"\x02\x07\x01\x01a\x01f\0\0";
        for section in [3, 7] {
            let many = [section, 5, 0xff, 0xff, 0xff, 0xff, 0x0f];
            let wasm = [b"\0asm\x01\0\0\0", &import[..], &many].concat();
            let with_home = append_home(&wasm);
            assert!(with_home.is_err() || wasmparser::validate(&with_home.unwrap()).is_err());
        }
    }
}
