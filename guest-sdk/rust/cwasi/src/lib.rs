#![doc = include_str!("../../README.md")]

mod call;
mod context;
pub mod export;
mod handler;
mod imports;
pub mod log;

pub use call::{CallError, call};
pub use context::{Context, context};
pub use cwasi_abi::Errno as ErrorKind;
pub use cwasi_macros::handler;
pub use handler::{Handler, IntoResponse};
