//! Builds a trampoline module: sections that all trampolines have. Runs in the builder. Pure.

use wasm_encoder::{
    CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, InstructionSink, Module, RefType, TableSection,
    TableType, TypeSection, ValType,
};

use super::HOME_TABLE;

/// Functions of one type behind a table; the index is on the stack.
#[derive(Clone, Copy)]
pub(super) struct Indirect {
    table: u32,
    ty: u32,
}

impl Indirect {
    pub(super) fn call(self, code: &mut InstructionSink<'_>) {
        code.call_indirect(self.table, self.ty);
    }
}

/// A module under construction. Functions are imported before the first one is defined.
#[derive(Default)]
pub(super) struct Trampoline {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    globals: GlobalSection,
    pub(super) exports: ExportSection,
    code: CodeSection,
    function_count: u32,
    imported_globals: u32,
}

impl Trampoline {
    pub(super) fn ty(&mut self, params: Vec<ValType>, results: Vec<ValType>) -> u32 {
        self.types.ty().function(params, results);
        self.types.len() - 1
    }

    pub(super) fn import(
        &mut self,
        module: &str,
        name: &str,
        params: Vec<ValType>,
        results: Vec<ValType>,
    ) -> u32 {
        let ty = self.ty(params, results);
        self.imports.import(module, name, EntityType::Function(ty));
        self.function_count += 1;
        self.function_count - 1
    }

    /// An immutable global; returns its number.
    pub(super) fn import_i32(&mut self, module: &str, name: &str) -> u32 {
        let ty = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
        self.imports.import(module, name, EntityType::Global(ty));
        self.imported_globals += 1;
        self.imported_globals - 1
    }

    fn table_of(&mut self, len: usize) -> u32 {
        let len = u64::from(count(len));
        self.tables.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum: len,
            maximum: Some(len),
            shared: false,
        });
        self.tables.len() - 1
    }

    /// Enters the caller; called with index 0.
    pub(super) fn home(&mut self) -> Indirect {
        let table = self.table_of(1);
        self.exports.export(HOME_TABLE, ExportKind::Table, table);
        Indirect { table, ty: self.ty(vec![], vec![]) }
    }

    /// A global that begins with 0; returns its number. All imported globals exist already.
    pub(super) fn place(&mut self) -> u32 {
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        self.globals.global(ty, &ConstExpr::i32_const(0));
        self.imported_globals + self.globals.len() - 1
    }

    pub(super) fn function(
        &mut self,
        name: &str,
        params: Vec<ValType>,
        results: Vec<ValType>,
        body: &Function,
    ) {
        let function = self.define(params, results, body);
        self.exports.export(name, ExportKind::Func, function);
    }

    fn define(&mut self, params: Vec<ValType>, results: Vec<ValType>, body: &Function) -> u32 {
        let ty = self.ty(params, results);
        self.functions.function(ty);
        self.code.function(body);
        self.function_count += 1;
        self.function_count - 1
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let mut module = Module::new();
        module
            .section(&self.types)
            .section(&self.imports)
            .section(&self.functions)
            .section(&self.tables)
            .section(&self.globals)
            .section(&self.exports)
            .section(&self.code);
        module.finish()
    }
}

/// Length of a vector in Wasm.
pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a module has far less than 2^32 of anything")
}
