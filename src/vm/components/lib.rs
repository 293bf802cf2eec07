//! Components on the engine wasmtime: WASI 0.2 and 0.3, and the interfaces of `abi/wit`. Runs in builder and workers.
//!
//! wasmtime-wasi serves WASI. Its functions are asynchronous, so a guest runs in a fiber, on a tokio runtime of this
//! thread alone ([`runtime`]).
//!
//! Invariants:
//! - One thread. What wasmtime wants to be `Send` never leaves it.
//! - A component gets what its container has, and nothing of this process: no variables, no directories, no
//!   destinations but those of [`InstanceSpec`](cwasi_vm::InstanceSpec) and `cwasi.network`.
//! - A fresh instance, store and WASI context for each request, unless the worker keeps the instance.

mod bindings;
mod callees;
mod calls;
mod client;
mod embedded;
mod exports;
mod function;
mod http;
mod http_async;
mod instance;
mod lent_host;
mod lists;
mod look_up;
mod memory_limit;
mod one_thread;
mod options;
mod output;
mod program;
mod requests;
mod resources;
mod rules;
mod runtime;
mod state;
mod stdin;
mod wasi;

pub use callees::{Callee, CalleeEnds, EmbeddedFunction, MakeCallee};
pub use embedded::EmbeddedComponent;
pub use function::ComponentFunction;
pub use instance::ComponentInstance;
pub use lent_host::LentHost;
pub use memory_limit::{MemoryBudget, MemoryLimit};
pub use options::ComponentOptions;
