#![doc = include_str!("../../README.md")]

#[cfg(test)]
extern crate self as cwasi;

mod call;
mod context;
pub mod export;
mod handler;
mod imports;
pub mod link;
pub mod log;

pub use call::{CallError, call, emit};
pub use context::{Context, context};
pub use cwasi_abi::Errno as ErrorKind;
pub use cwasi_macros::{export, handler, import};
pub use handler::{Handler, IntoResponse};
