//! The engine behind the traits of [`engine`]: load a module's native code, make instances, run one invocation in each.
//! Runs in workers, and in the builder, which loads the module before the container exists.
//!
//! Invariant: one thread. WasmEdge's signal handling does not survive traps on several threads.
//!
//! - [`compile`]: what every compiler process does.
//! - [`engine`]: the traits, independent of the engine; `ends`, `handler`: what an invocation gets and how it ends.
//! - [`reactor`]: the `cwasi_handle` protocol over any engine.
//! - [`interface`]: what a module imports and exports.
//! - [`linear_memory`]: a linear memory by its address; [`host_calls`]: the host functions of one VM.
//! - [`image`]: restoring memory to an earlier state.
//! - [`trampoline`]: trampolines between modules of one VM.
//! - `sockets`: allowed destinations of guests' sockets.
//! - [`linked_calls`]: calls of linked functions that skip the host.
//! - `state`: what guests of a module can change; `wasi_calls`: which WASI functions they have called.

pub mod compile;
mod ends;
pub mod engine;
mod handler;
pub mod host_calls;
pub mod image;
pub mod interface;
pub mod linear_memory;
pub mod linked_calls;
pub mod reactor;
pub mod sockets;
pub mod state;
pub mod trampoline;
pub mod wasi_calls;

pub use cwasi_host_functions::{Context, Host, Level, LogSink};
pub use cwasi_wire::control::Entry;
pub use engine::{
    CommandEnd, Engine, EngineOptions, GuestStop, Instance, InstanceSpec, Module, NotRenewed,
    Preopen, Start, Trap, VmError,
};
pub use reactor::HandlerOutcome;
