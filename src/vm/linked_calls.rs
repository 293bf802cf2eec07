//! Lets calls of linked functions skip the host. Runs in the compiler process. Pure: bytes in, bytes out.
//!
//! Each function that a module imports from an embedded one gets a wrapper. It counts the call, and calls the callee's
//! own function, which the host has put into a table ([`LINKED_CALLEES_EXPORT`]). Calls whose number has none of the
//! bits of a mask ([`LINKED_MASK_EXPORT`]) call the import instead, a function of the host that measures time, passes
//! buffers and records spans. The mask is 0 at first: all calls do.
//!
//! Used with wasmtime. With WasmEdge `vm::trampoline` stands between linked modules.

use std::convert::Infallible;

use cwasi_abi::{
    IMPORT_MODULE, LINKED_CALLEES_EXPORT, LINKED_CALLS_EXPORT, LINKED_MASK_EXPORT,
    LINKED_RUNNING_EXPORT, prototype,
};
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ConstExpr, ExportKind, ExportSection, Function, FunctionSection, GlobalSection,
    GlobalType, Module, RefType, SectionId, TableSection, TableType, ValType,
};
use wasmparser::{
    CodeSectionReader, CompositeInnerType, ExportSectionReader, FunctionSectionReader,
    GlobalSectionReader, Parser, Payload, TableSectionReader, TypeRef,
};

use super::wasi_calls::WASI;

/// Most imports with a wrapper.
const LINKED_MAX: usize = 256;
/// Globals before the counters: the mask, and what runs.
const FIRST_COUNTER: u32 = 2;

/// True for a function that can be linked, by the module it is imported from.
#[must_use]
pub fn is_linked(module: &str) -> bool {
    module != IMPORT_MODULE && module != WASI && module != prototype::IMPORT_MODULE
}

/// Returns `wasm`, a valid module, with a wrapper for each import of a linked function; `None` if it has none, or cannot
/// be rewritten.
#[must_use]
pub fn wrap(wasm: &[u8]) -> Option<Vec<u8>> {
    let mut linking = LinkingModule::of(wasm)?;
    let has_sections = linking.has_functions && linking.has_exports;
    if linking.linked.is_empty() || linking.linked.len() > LINKED_MAX || !has_sections {
        return None;
    }
    let mut module = Module::new();
    linking.parse_core_module(&mut module, Parser::new(0), wasm).ok()?;
    Some(module.finish())
}

/// A module under reconstruction.
#[derive(Default)]
struct LinkingModule<'a> {
    linked: Vec<LinkedImport<'a>>,
    /// Indices of imports, and the place of each in `linked`: a function may be imported twice.
    places: Vec<(u32, usize)>,
    /// Number of its functions, imported ones included.
    functions: u32,
    has_functions: bool,
    has_exports: bool,
    tables: u32,
    has_tables: bool,
    globals: u32,
    has_globals: bool,
}

#[derive(Clone, Copy)]
struct LinkedImport<'a> {
    module: &'a str,
    name: &'a str,
    index: u32,
    ty: u32,
    params: u32,
}

impl<'a> LinkingModule<'a> {
    fn of(wasm: &'a [u8]) -> Option<Self> {
        let (mut this, mut params) = (Self::default(), Vec::new());
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    for group in section {
                        for ty in group.ok()?.into_types() {
                            params.push(match ty.composite_type.inner {
                                CompositeInnerType::Func(ty) => ty.params().len(),
                                _ => 0,
                            });
                        }
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import.ok()?;
                        let TypeRef::Func(ty) = import.ty else { return None };
                        if is_linked(import.module) {
                            let params = *params.get(usize::try_from(ty).ok()?)?;
                            let params = u32::try_from(params).ok()?;
                            let (module, name) = (import.module, import.name);
                            this.link(LinkedImport {
                                module,
                                name,
                                index: this.functions,
                                ty,
                                params,
                            });
                        }
                        this.functions += 1;
                    }
                }
                Payload::FunctionSection(section) => {
                    this.functions += section.count();
                    this.has_functions = true;
                }
                Payload::ExportSection(_) => this.has_exports = true,
                Payload::TableSection(section) => {
                    (this.tables, this.has_tables) = (section.count(), true);
                }
                Payload::GlobalSection(section) => {
                    (this.globals, this.has_globals) = (section.count(), true);
                }
                _ => {}
            }
        }
        Some(this)
    }

    fn link(&mut self, import: LinkedImport<'a>) {
        let is_same = |known: &LinkedImport<'_>| {
            (known.module, known.name, known.ty) == (import.module, import.name, import.ty)
        };
        let place = self.linked.iter().position(is_same).unwrap_or(self.linked.len());
        self.places.push((import.index, place));
        if place == self.linked.len() {
            self.linked.push(import);
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.linked.len()).unwrap_or(u32::MAX)
    }

    fn add_table(&self, tables: &mut TableSection) {
        let elements = u64::from(self.count());
        tables.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum: elements,
            maximum: Some(elements),
            shared: false,
        });
    }

    fn add_globals(&self, globals: &mut GlobalSection) {
        let mutable = |val_type| GlobalType { val_type, mutable: true, shared: false };
        globals.global(mutable(ValType::I64), &ConstExpr::i64_const(0));
        globals.global(mutable(ValType::I32), &ConstExpr::i32_const(0));
        for _ in &self.linked {
            globals.global(mutable(ValType::I64), &ConstExpr::i64_const(0));
        }
    }

    /// The wrapper of the import `number`.
    fn wrapper(&self, number: u32, import: LinkedImport<'_>) -> Function {
        let LinkedImport { index, ty, params, .. } = import;
        let (mask, running) = (self.globals, self.globals + 1);
        let calls = self.globals + FIRST_COUNTER + number;
        let mut body = Function::new([]);
        let mut code = body.instructions();
        code.i32_const((number + 1).cast_signed()).global_set(running);
        code.block(wasm_encoder::BlockType::Empty);
        code.global_get(calls).global_get(mask).i64_and().i64_eqz().br_if(0);
        (0..params).for_each(|param| {
            code.local_get(param);
        });
        code.i32_const(number.cast_signed()).call_indirect(self.tables, ty);
        code.i32_const(0).global_set(running);
        code.global_get(calls).i64_const(1).i64_add().global_set(calls);
        code.return_().end();
        (0..params).for_each(|param| {
            code.local_get(param);
        });
        code.call(index);
        code.i32_const(0).global_set(running);
        code.global_get(calls).i64_const(1).i64_add().global_set(calls).end();
        body
    }
}

impl Reencode for LinkingModule<'_> {
    type Error = Infallible;

    /// Replaces an import by its wrapper.
    fn function_index(&mut self, function: u32) -> Result<u32, Error<Infallible>> {
        let place = self.places.iter().find(|(index, _)| *index == function);
        let place = place.and_then(|(_, place)| u32::try_from(*place).ok());
        Ok(place.map_or(function, |place| self.functions + place))
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        for LinkedImport { ty, .. } in &self.linked {
            functions.function(*ty);
        }
        Ok(())
    }

    fn parse_table_section(
        &mut self,
        tables: &mut TableSection,
        section: TableSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_table_section(self, tables, section)?;
        self.add_table(tables);
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: GlobalSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_global_section(self, globals, section)?;
        self.add_globals(globals);
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_export_section(self, exports, section)?;
        exports.export(LINKED_CALLEES_EXPORT, ExportKind::Table, self.tables);
        exports.export(LINKED_MASK_EXPORT, ExportKind::Global, self.globals);
        exports.export(LINKED_RUNNING_EXPORT, ExportKind::Global, self.globals + 1);
        for number in 0..self.count() {
            let name = format!("{LINKED_CALLS_EXPORT}{number}");
            exports.export(&name, ExportKind::Global, self.globals + FIRST_COUNTER + number);
        }
        Ok(())
    }

    /// Adds the sections that the module does not have.
    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        _: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error<Infallible>> {
        let is_behind_tables = matches!(
            before,
            Some(SectionId::Memory | SectionId::Tag | SectionId::Global | SectionId::Export)
        );
        if is_behind_tables && !self.has_tables {
            self.has_tables = true;
            let mut tables = TableSection::new();
            self.add_table(&mut tables);
            module.section(&tables);
        }
        if before == Some(SectionId::Export) && !self.has_globals {
            let mut globals = GlobalSection::new();
            self.add_globals(&mut globals);
            module.section(&globals);
        }
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        for (number, linked) in (0..).zip(&self.linked) {
            code.function(&self.wrapper(number, *linked));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(module: &str) -> Option<String> {
        let wasm = wrap(&wat::parse_str(module).unwrap())?;
        wasmparser::validate(&wasm).unwrap();
        Some(wasmprinter::print_bytes(&wasm).unwrap())
    }

    #[test]
    fn every_way_to_a_linked_function_goes_by_its_wrapper() {
        let text = wrapped(
            r#"(module
            (import "lib" "add" (func $add (param i32 i64) (result i32)))
            (import "cwasi" "log" (func $log (param i32 i32 i32) (result i32)))
            (import "lib" "two" (func $two (result i32 i32)))
            (global $g (mut i32) (i32.const 7)) (table 2 funcref) (elem (i32.const 0) $add $log)
            (memory (export "memory") 1) (export "add" (func $add))
            (func (export "f") (result i32)
                (drop (call $log (i32.const 0) (i32.const 0) (i32.const 0)))
                (i32.add (call $two))
                (call $add (i64.const 2))))"#,
        )
        .unwrap();
        // Functions: three imports, `f`, and the wrappers of `add` and `two`.
        for expected in [
            "(func $log (;1;) (type 1))",
            "call $log\n",
            "call $add\n",
            "(func $add (;4;) (type 0)",
            "(func $two (;5;) (type 2)",
            "call $two\n",
            r#"(export "add" (func $add))"#,
            "func $add $log)",
            r#"(export "cwasi.linked.callees" (table 1))"#,
            r#"(export "cwasi.linked.mask" (global 1))"#,
            r#"(export "cwasi.linked.calls.1" (global 4))"#,
            "local.get 0\n      local.get 1\n      i32.const 0\n      call_indirect 1 (type 0)",
            "local.get 0\n    local.get 1\n    call 0\n    i32.const 0\n    global.set 2",
        ] {
            assert!(text.contains(expected), "{expected} missing in {text}");
        }
    }

    #[test]
    fn a_function_that_is_imported_twice_has_one_wrapper() {
        let text = wrapped(
            r#"(module (import "lib" "add" (func)) (import "lib" "add" (func))
            (func (export "_start") (call 0) (call 1)))"#,
        );
        let text = text.unwrap();
        assert_eq!(text.matches("call 3\n").count(), 2, "{text}");
        assert!(!text.contains("cwasi.linked.calls.1"), "{text}");
    }

    #[test]
    fn a_module_without_tables_and_globals_gets_them() {
        for rest in ["", "(memory 1)", "(global i32 (i32.const 1))", "(table 1 funcref)"] {
            let module = format!(
                r#"(module (import "lib" "add" (func $add)) {rest}
                (func (export "_start") (call $add)))"#
            );
            let text = wrapped(&module).unwrap();
            assert!(text.contains("cwasi.linked.running"), "{text}");
        }
    }

    #[test]
    fn one_that_links_nothing_stays_as_it_is() {
        for module in [
            r#"(module (import "cwasi" "log" (func (param i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))
            (func (export "_start")))"#,
            r#"(module (import "lib" "add" (func)) (export "add" (func 0)))"#,
            r#"(module (import "lib" "add" (func)) (func $s (call 0)) (start $s))"#,
            r#"(module (import "lib" "g" (global i32)) (func (export "_start")))"#,
        ] {
            assert_eq!(wrapped(module), None);
        }
    }
}
