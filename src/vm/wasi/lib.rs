//! WASI preview 1, and WasmEdge's socket functions. Runs in a worker.
//!
//! Independent of the engine: a function takes its parameters as numbers, acts on the guest's memory, and returns an
//! errno. The engine binds the functions by [`functions!`] and [`socket_extensions!`].
//!
//! Invariants: a guest reaches files only below its directories (`paths`) and the network only as `vm::sockets`
//! allows; every pointer of a guest goes through [`GuestMemory`]; no function panics, whatever its parameters.
//!
//! - `template`: settings that the instances of a worker share; `descriptors`: an instance's descriptors.
//! - `files`, `attributes`, `path_functions`, `directories`: files; `paths`: how paths are resolved.
//! - `process`: arguments, clocks, random bytes; `poll`: waiting; `sockets`, `socket_addresses`: sockets.
//! - `layout`, `buffers`: structures and buffers in a guest's memory; `functions`: names and types.

mod attributes;
mod buffers;
mod descriptors;
mod directories;
mod files;
mod functions;
mod layout;
mod path_functions;
mod paths;
mod poll;
mod process;
mod socket_addresses;
mod sockets;
mod stderr_tail;
mod template;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::rc::Rc;

use cwasi_vm::sockets::Sockets;

pub use self::functions::{FUNCTIONS, SOCKET_EXTENSIONS, ValueKind, WasiFunction};
pub use self::stderr_tail::TAIL_MAX;
pub use self::template::{SocketNetwork, WasiTemplate, open_directory};
pub use cwasi_host_functions::GuestMemory;
pub use cwasi_vm::sockets::WasiErrno;

use self::descriptors::Descriptors;
use self::stderr_tail::StderrTail;

/// The result of a function: the guest gets 0, or the errno.
pub type WasiResult<T = ()> = Result<T, WasiErrno>;

/// WASI of one instance. Its methods are the functions of [`functions!`] and [`socket_extensions!`].
#[derive(Debug)]
pub struct Wasi {
    template: Rc<WasiTemplate>,
    descriptors: Descriptors,
    /// Made for the first socket.
    sockets: OnceCell<Sockets>,
    /// While stderr is kept.
    tail: Option<StderrTail>,
}

impl Wasi {
    /// One with the same descriptors; `None` if the guest has opened one, which the copy would share.
    #[must_use]
    pub fn copy_without_files(&self) -> Option<Self> {
        let descriptors = self.descriptors.copy_without_files()?;
        Some(Self { descriptors, ..Self::new(&self.template) })
    }

    /// Makes no system call and allocates nothing.
    #[must_use]
    pub fn new(template: &Rc<WasiTemplate>) -> Self {
        Self {
            template: Rc::clone(template),
            descriptors: Descriptors::default(),
            sockets: OnceCell::new(),
            tail: None,
        }
    }

    /// Forgets what the guest wrote to stderr before, and keeps what it writes from now on.
    pub fn keep_stderr(&mut self) {
        self.tail = Some(StderrTail::default());
    }

    /// The last bytes that the guest wrote to stderr since [`Self::keep_stderr`], at most [`TAIL_MAX`].
    #[must_use]
    pub fn stderr_tail(&self) -> &[u8] {
        self.tail.as_ref().map_or(&[], StderrTail::bytes)
    }
}
