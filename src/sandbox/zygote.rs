//! The zygote: has the engine loaded, has one thread, and never calls libcontainer.
//!
//! It reads one [`VerbRequest`] at a time from the shim and forks a builder for it as its own *sibling*. Builders and
//! the containers' processes are the shim's children, so the shim sees their exits also when the zygote is dead. The
//! zygote reaps no process, and ends when the shim closes the control socket.
#![expect(unsafe_code, reason = "takes the control socket that it inherits as a number")]

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use cwasi_sys::clock::Deadline;
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::process::{Fork, SingleThreaded, exit_now, take_inherited};
use cwasi_sys::seqpacket::{self, Received, SocketError};
use cwasi_vm::Engine;
use cwasi_wire::control::{self, CONTROL_MESSAGE_MAX, VERSION, VerbReply, VerbRequest};

use super::{builder, document, exit_codes, stderr};

/// Number under which the shim passes the control socket.
pub const CONTROL_DESCRIPTOR: RawFd = 3;

/// Number under which the shim may pass what the dynamic linker has loaded by now.
const LIBRARY_DESCRIPTOR: RawFd = 4;

/// Why the zygote ended.
#[derive(Debug, thiserror::Error)]
pub enum ZygoteError {
    /// It was not started by a shim.
    #[error("descriptor {CONTROL_DESCRIPTOR} is not the shim's control socket: {source}")]
    NoControl {
        #[source]
        source: io::Error,
    },
    /// It cannot fork safely.
    #[error("the zygote cannot fork: {source}")]
    Threads {
        /// How many threads there are.
        #[source]
        source: io::Error,
    },
    /// Its working directory cannot be left.
    #[error("the zygote cannot change to the directory /: {source}")]
    Directory {
        #[source]
        source: io::Error,
    },
    /// The control socket broke.
    #[error("the control socket cannot be read: {source}")]
    Control {
        /// What the socket says.
        #[source]
        source: SocketError,
    },
}

/// Serves the shim until it closes the control socket. Functions run in the engine `E`.
///
/// # Errors
/// When there is no control socket, or it breaks.
pub fn run<E: Engine>() -> Result<(), ZygoteError> {
    // SAFETY:
    // - the shim passes the socket under this number, and nothing here has opened a descriptor yet that
    //   could sit on it.
    let control = unsafe { take_inherited(CONTROL_DESCRIPTOR) }
        .map_err(|source| ZygoteError::NoControl { source })?;
    // SAFETY:
    // - the shim passes a library for the dynamic linker under this number, or nothing; no other code has it.
    drop(unsafe { take_inherited(LIBRARY_DESCRIPTOR) });
    std::env::set_current_dir("/").map_err(|source| ZygoteError::Directory { source })?;
    let threads = SingleThreaded::prove().map_err(|source| ZygoteError::Threads { source })?;
    // The greeting: the engine is loaded. A shim that is gone already shows at the first receive.
    let greeting = VERSION.as_bytes();
    drop(seqpacket::send(control.as_fd(), &[greeting], &[], Some(Deadline::PASSED)));
    let mut buffer = PageBuffer::new(CONTROL_MESSAGE_MAX);
    loop {
        match seqpacket::receive(control.as_fd(), &mut buffer, None) {
            Ok(Received { len, descriptors }) => {
                if let Some((request, descriptors)) = accept(&buffer[..len], descriptors)
                    && let Some(task) = fork_builder(threads, request, descriptors)
                {
                    drop(control);
                    task.serve::<E>();
                }
            }
            Err(SocketError::Closed) => return Ok(()),
            Err(SocketError::Truncated { limit }) => {
                stderr::line(&format!("a request is longer than {limit} bytes, dropped"));
            }
            Err(source) => return Err(ZygoteError::Control { source }),
        }
    }
}

/// A request that can be served; everything else is answered or logged here.
fn accept(message: &[u8], mut descriptors: Vec<OwnedFd>) -> Option<(VerbRequest, Vec<OwnedFd>)> {
    // After the reply socket.
    match document::read::<VerbRequest>(message, &mut descriptors, 1) {
        Ok(request) => Some((request, descriptors)),
        Err(error) => {
            stderr::line(&format!("zygote: {error}"));
            refuse(&descriptors, error.to_string());
            None
        }
    }
}

/// In the child: the builder's task. In the zygote: `None`.
fn fork_builder(
    threads: SingleThreaded,
    request: VerbRequest,
    descriptors: Vec<OwnedFd>,
) -> Option<builder::Task> {
    match threads.fork_sibling() {
        Ok(Fork::Child) => match builder::Task::new(threads, request, descriptors) {
            Some(task) => Some(task),
            None => exit_now(exit_codes::UNANSWERED),
        },
        Ok(Fork::Parent(_)) => None,
        Err(error) => {
            refuse(&descriptors, format!("the zygote cannot fork a builder: {error}"));
            None
        }
    }
}

/// Answers a request for which there will be no builder.
fn refuse(descriptors: &[OwnedFd], message: String) {
    if let Some(reply_to) = descriptors.first() {
        let reply = control::encode(&VerbReply::Failed { message });
        // The shim may have given up on the request; then it does not wait for this.
        drop(seqpacket::send(reply_to.as_fd(), &[&reply], &[], Some(Deadline::PASSED)));
    }
}
