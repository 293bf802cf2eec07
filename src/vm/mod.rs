//! The engine behind a small trait: load native code of a module, make instances, run one invocation each.
//!
//! Runs in workers (and in the builder, which loads the module before the container exists), always on
//! one thread: the engine's signal handling does not survive traps on several threads.
//!
//! - [`engine`]: the traits and what an invocation can end with; knows no engine.
//! - [`reactor`]: the `cwasi_handle` protocol over any engine.
//! - [`wasmedge`]: the engine that we use; with [`mod@compile`] the sole importer of `wasmedge_*`.
//! - [`dispatch`]: the dispatcher as host functions see it.
//! - [`gate`]: what stands between modules of one VM.
//! - `sockets`: which destinations guests' sockets may have.
//! - `state`: what guests of a module can change; `wasi_calls`: what they can leave in a WASI.
//! - [`fingerprint`]: what native code depends on; for the control plane, which must not link the engine.
//!
//! A fresh instance per request is made ahead of it and runs once:
//!
//! ```no_run
//! # use cwasi::vm::{Engine, Entry, InstanceSpec, Module, Preopen, Instance, WasmEdge, EngineOptions, Host, Context};
//! # use cwasi::modes::Payload;
//! # fn example(mut host: Host, spec: InstanceSpec, context: Context, payload: Payload) -> Result<(), cwasi::vm::VmError> {
//! let engine = WasmEdge::new(EngineOptions::default())?;
//! let module = engine.load(std::path::Path::new("/var/lib/cwasi/aot/0123.so"))?;
//! module.check(&Entry::Reactor)?;
//! let mut next = module.instantiate(&spec, &mut host)?; // ahead
//! host.begin(context); // the request is here
//! let handled = cwasi::vm::reactor::handle(&mut next, &payload, &mut host);
//! host.end();
//! # Ok(()) }
//! ```

pub mod compile;
pub mod dispatch;
pub mod engine;
pub mod fingerprint;
pub mod gate;
pub mod reactor;
pub(crate) mod sockets;
pub(crate) mod state;
mod wasi_calls;
pub mod wasmedge;

pub use crate::wire::control::Entry;
pub use compile::{CompileError, compile};
pub use cwasi_host_functions::{Context, Host, Level, LogSink};
pub use dispatch::FunctionCalls;
pub use engine::{
    End, Engine, EngineOptions, Instance, InstanceSpec, Module, NotRenewed, Preopen, Start, Stop,
    Trap, VmError,
};
pub use reactor::Handled;
pub use wasmedge::WasmEdge;
