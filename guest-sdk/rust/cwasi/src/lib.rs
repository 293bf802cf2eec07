//! `cwasi`: runs inside guests. Outside a guest, every host function returns `NotAvailable`.
//!
#![doc = include_str!("../../README.md")]

#[cfg(test)]
extern crate self as cwasi;

pub mod action;
mod block;
mod call;
mod context;
mod dispatch;
pub mod export;
mod fan;
mod handler;
pub mod http;
mod imports;
pub mod link;
pub mod log;
mod parts;
mod pending;
mod region;

pub use call::{CALLS_MAX, CallError, Response, call, call_idempotent, call_in_place, emit};
pub use context::{Context, context};
pub use cwasi_abi::Errno as ErrorKind;
pub use cwasi_abi::PartsError;
#[cfg(feature = "json")]
pub use cwasi_macros::action;
pub use cwasi_macros::{export, handler, import};
pub use fan::{Completed, FanOut, Shared, broadcast, fan_out};
pub use handler::{Body, Handler, IntoResponse, Payload};
pub use parts::{Part, Parts, parts_block};
pub use pending::{AsCompleted, CallOptions, Pending, as_completed, join_all, start};
pub use region::{Region, SealedRegion};
