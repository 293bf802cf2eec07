//! Trampolines: generated modules between a module and its embedded modules (docs/embedding.md). Runs in the
//! builder. Pure: bytes out of names and types, without an engine.
//!
//! After a call from one compiled module into another, the caller continues with the *callee's* memories and globals:
//! the engine sets its thread-local context on entry and does not restore it. So such a call goes through a trampoline,
//! which the engine interprets. Before it returns, the trampoline enters the caller once more through [`HOME`], an
//! empty function that the coordinator appended to it.

use std::num::NonZero;

use wasm_encoder::{Function, ValType};

mod builder;
mod dispatch;
#[cfg(test)]
mod tests;

use builder::{Trampoline, count};
pub use cwasi_abi::HOME_EXPORT as HOME;
pub use dispatch::{DispatchCallee, dispatch};

/// Module from which a trampoline imports the leaf host functions below; no guest can import from it.
pub const TRAMPOLINE_HOST: &str = "cwasi:trampoline";
/// Module from which a dispatch trampoline imports the host functions that it re-exports.
pub const HOST: &str = "cwasi:host";
/// A trampoline's table of one function: the caller's [`HOME`], set when the caller exists.
///
/// A trampoline exports it beside a module's functions, none of which has a reserved name.
pub const HOME_TABLE: &str = "cwasi.table";

/// `(function)`: begins a static call; `function` is the number of a [`LinkedFunction`].
pub const ENTER: &str = "enter";
/// `()`: ends the static call that began last.
pub const LEAVE: &str = "leave";
/// `request_dispatcher`'s parameters `->` the values of a [`Begun`].
pub const BEGIN: &str = "begin";
/// `dispatch_start`'s parameters `->` the values of a [`Begun`].
pub const BEGIN_START: &str = "begin_start";
/// `(response_out, payload_ptr) -> errno`: passes the payload into the callee's block. If this does not return 0, the
/// call has ended, and the handler does not run.
pub const PASS: &str = "pass";
/// Result of [`PASS`] when a started call has ended: `dispatch_start` returns 0, and `dispatch_wait` tells the error.
pub const ENDED: i32 = -1;
/// `(status) -> errno`: ends the call.
pub const END: &str = "end";

/// How a payload gets to an embedded module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The callee allocates a block for it.
    Block,
    /// The callee allocates whole pages for it.
    Pages,
    /// The host has passed it to the callee's [`cwasi_abi::export::PAYLOAD`].
    Buffer,
}

impl Delivery {
    const fn code(self) -> i32 {
        match self {
            Self::Buffer => 0,
            Self::Block => 1,
            Self::Pages => 2,
        }
    }
}

/// What a trampoline does after [`BEGIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It returns this errno: the host has handled the call.
    Ended(i32),
    /// It calls an embedded module.
    Run {
        /// Its index, plus 1.
        number: NonZero<u32>,
        /// How it gets the payload.
        delivery: Delivery,
        /// Addresses of the payload and of the response's pointer; 0 unless the payload was passed
        /// ([`Delivery::Buffer`]).
        addresses: [i32; 2],
    },
}

impl Begun {
    /// Number of its values.
    pub const VALUES: usize = 4;

    /// As results of a Wasm function: number (0: none), delivery or errno, addresses.
    #[must_use]
    pub const fn values(self) -> [i32; Self::VALUES] {
        match self {
            Self::Ended(errno) => [0, errno, 0, 0],
            Self::Run { number, delivery, addresses: [payload, response] } => {
                [number.get().cast_signed(), delivery.code(), payload, response]
            }
        }
    }
}

/// A number type of Wasm functions.
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
    pub name: String,
    /// Types of its parameters.
    pub params: Vec<Number>,
    /// Types of its results.
    pub results: Vec<Number>,
}

/// Name of an embedded module's instance for trampolines; no guest can import from it.
#[must_use]
pub fn instance_name(embedded: &str) -> String {
    format!("cwasi:embedded:{embedded}")
}

/// The trampoline through which a module calls `functions` of the module `embedded`.
#[must_use]
pub fn link(embedded: &str, functions: &[LinkedFunction]) -> Vec<u8> {
    let mut trampoline = Trampoline::default();
    let enter = trampoline.import(TRAMPOLINE_HOST, ENTER, vec![ValType::I32], vec![]);
    let leave = trampoline.import(TRAMPOLINE_HOST, LEAVE, vec![], vec![]);
    let from = instance_name(embedded);
    let callees: Vec<u32> = functions
        .iter()
        .map(|function| {
            trampoline.import(&from, &function.name, params(function), results(function))
        })
        .collect();
    let home = trampoline.home();
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
        trampoline.function(&function.name, params(function), results(function), &body);
    }
    trampoline.finish()
}

fn params(function: &LinkedFunction) -> Vec<ValType> {
    function.params.iter().copied().map(Into::into).collect()
}

fn results(function: &LinkedFunction) -> Vec<ValType> {
    function.results.iter().copied().map(Into::into).collect()
}
