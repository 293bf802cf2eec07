//! Modules that take a compiler long.

use std::fs;

use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, Module, TypeSection, ValType,
};

use crate::paths::checkout;

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

/// A module that takes seconds to compile, and that no other run of the tests and no other number has: its last section
/// is its own.
///
/// # Panics
/// When the functions of the papers are not built (`scripts/functions.sh`).
#[must_use]
pub fn fresh_module(number: u8) -> Vec<u8> {
    let path = checkout().join("target/functions/aes.wasm");
    let mut module = fs::read(path).expect("scripts/functions.sh builds it");
    module.extend([0, 7, 1, b'n', number]);
    module.extend(std::process::id().to_le_bytes());
    module
}
