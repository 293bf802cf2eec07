//! A small module that takes a compiler long.

use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, Module, TypeSection, ValType,
};

/// Most local variables of one function that the validator accepts.
pub const LOCALS: u32 = 50_000;

/// A command of so many functions: a few bytes for each, and for each the most locals. Each number is another module.
#[must_use]
pub fn slow_module(functions: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let (mut declared, mut code) = (FunctionSection::new(), CodeSection::new());
    for _ in 0..functions {
        declared.function(0);
        let mut body = Function::new([(LOCALS, ValType::I64)]);
        body.instructions().end();
        code.function(&body);
    }
    let mut exports = ExportSection::new();
    exports.export("_start", ExportKind::Func, 0);
    let mut module = Module::new();
    module.section(&types).section(&declared).section(&exports).section(&code);
    module.finish()
}
