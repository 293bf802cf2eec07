//! The modes: how a call's data moves. One folder for each mode that moves data between processes. No mode chooses
//! between modes or imports another.
//!
//! There is no trait of modes, because a worker knows one kind of connection. [`local`] implements both ends of it: the
//! caller's end in its worker, and the callee's end in sandbox init ([`local::receiver`]) and its workers
//! ([`local::shared_connections`]). A networked route is such a connection to the caller's own shim; the crate
//! `cwasi_networked` runs in the shims of both hosts. An embedded call moves no data between processes; the engine
//! makes it (`vm::trampoline`). All three modes pass the same suite, through the dispatcher (`tests/conformance`).

mod call;
pub mod causes;
mod error;
pub mod local;
mod payload;
pub mod pool;
pub mod shared_processor;
pub mod spin;

pub use call::{CallResult, CallTicket, ModeKind, OutgoingCall, TooManyCalls};
pub use causes::{Overload, TooLarge};
pub use error::CallError;
pub use payload::{OutgoingPayload, Payload};
