//! Gates: generated modules that stand between a module and what is embedded in it (docs/embedding.md).
//!
//! A compiled function that calls into another compiled module finds the *other* module's memories and
//! globals when the call returns: the engine sets its thread-local context on entry and does not restore it.
//! So such a call goes through a gate, which the engine interprets, and which enters the caller once more,
//! through the empty function [`HOME`] that the coordinator appended to it, before it returns.
//!
//! Pure: bytes out of names and types. Knows no engine.

use wasm_encoder::{Function, ValType};

mod builder;
mod dispatch;
#[cfg(test)]
mod tests;

use builder::{Gate, count};
pub use cwasi_abi::HOME_EXPORT as HOME;
pub use dispatch::{Callee, dispatch};

/// Module from which a gate imports the leaf host functions below; no guest can import from it.
pub const GATE_HOST: &str = "cwasi:gate";
/// Module from which a dispatch gate takes the host functions that it hands through.
pub const HOST: &str = "cwasi:host";
/// A gate's table of one function: the caller's [`HOME`], set once the caller is there.
pub const HOME_TABLE: &str = "home";

/// `(function)`: a static call begins; `function` is the number that [`LinkedFunction`] has.
pub const ENTER: &str = "enter";
/// `()`: the static call that began last is over.
pub const LEAVE: &str = "leave";
/// `request_dispatcher`'s parameters `-> errno`, or a [`route`] when the callee is embedded.
pub const BEGIN: &str = "begin";
/// `dispatch_start`'s parameters `-> errno`, or a [`route`] when the callee is embedded.
pub const BEGIN_START: &str = "begin_start";
/// `(response_out, payload_ptr) -> errno`: the payload is copied to where the callee allocated.
pub const PASS: &str = "pass";
/// `(status) -> errno`: the callee answered.
pub const END: &str = "end";

/// What [`BEGIN`] says when the embedded module `callee` serves the call, below zero; `in_pages` has it allocate whole
/// pages for the payload.
#[must_use]
pub fn route(callee: usize, in_pages: bool) -> Option<i32> {
    let callee = i32::try_from(callee).ok()?.checked_mul(2)?;
    Some(-1 - (callee + i32::from(in_pages)))
}

/// A number that Wasm functions take and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
}

impl From<Number> for ValType {
    fn from(number: Number) -> Self {
        match number {
            Number::I32 => Self::I32,
            Number::I64 => Self::I64,
            Number::F32 => Self::F32,
            Number::F64 => Self::F64,
        }
    }
}

/// A function that a module imports from an embedded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedFunction {
    /// Its number within the VM, passed to [`ENTER`].
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Types of its parameters.
    pub params: Vec<Number>,
    /// Types of its results.
    pub results: Vec<Number>,
}

/// Name under which an embedded module's instance is known to gates; no guest can import from it.
#[must_use]
pub fn instance_name(embedded: &str) -> String {
    format!("cwasi:embedded:{embedded}")
}

/// The gate through which a module calls `functions` of the module `embedded`.
#[must_use]
pub fn link(embedded: &str, functions: &[LinkedFunction]) -> Vec<u8> {
    let mut gate = Gate::default();
    let enter = gate.import(GATE_HOST, ENTER, vec![ValType::I32], vec![]);
    let leave = gate.import(GATE_HOST, LEAVE, vec![], vec![]);
    let from = instance_name(embedded);
    let callees: Vec<u32> = functions
        .iter()
        .map(|function| gate.import(&from, &function.name, params(function), results(function)))
        .collect();
    let home = gate.home();
    for (function, callee) in functions.iter().zip(callees) {
        let mut body = Function::new([]);
        let mut code = body.instructions();
        code.i32_const(function.number.cast_signed()).call(enter);
        for index in 0..count(function.params.len()) {
            code.local_get(index);
        }
        code.call(callee).call(leave).i32_const(0);
        home.call(&mut code);
        code.end();
        gate.function(&function.name, params(function), results(function), &body);
    }
    gate.finish()
}

fn params(function: &LinkedFunction) -> Vec<ValType> {
    function.params.iter().copied().map(Into::into).collect()
}

fn results(function: &LinkedFunction) -> Vec<ValType> {
    function.results.iter().copied().map(Into::into).collect()
}
