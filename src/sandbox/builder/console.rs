//! The socket over which libcontainer hands out the master of a new process's terminal.
//!
//! libcontainer makes the terminal inside the container, after it has joined the mounts, and connects to a path. The
//! connection and its one message wait in the listener's queue until the builder, which is busy with the container
//! until then, takes them.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::Process;
use nix::unistd::getpid;

use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_sys::terminal_size::{Size, set_size};
use cwasi_wire::control::VerbRequest;

use super::BuilderError;
use super::causes::TerminalCause;
use super::spec::files_of;

/// Name of the socket in its directory.
const SOCKET: &str = "console";
/// Bytes that are read of the message; libcontainer sends the name of a device.
const MESSAGE_MAX: usize = 256;

/// A listening console socket; its directory goes when it is dropped.
#[derive(Debug)]
pub struct Console {
    id: String,
    directory: PathBuf,
    listener: UnixListener,
}

impl Console {
    /// Listens in a directory of this builder's own.
    pub fn new(request: &VerbRequest) -> Result<Self, BuilderError> {
        let id = request.container.clone();
        let directory = files_of(request).join(format!("console-{}", getpid()));
        let listener = fs::create_dir_all(&directory)
            .and_then(|()| File::open(&directory))
            // The path itself may be too long for a socket's address.
            .and_then(|opened| {
                UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd()))
            });
        match listener {
            Ok(listener) => Ok(Self { id, directory, listener }),
            Err(error) => {
                let _left = fs::remove_dir_all(&directory);
                Err(failed(id, "preparing", error))
            }
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// The master, once the process exists, with the size that its process asks for.
    pub fn master(self, process: Option<&Process>) -> Result<OwnedFd, BuilderError> {
        let id = || self.id.clone();
        // A process that exists has connected: a missing connection is an error, not a wait.
        self.listener.set_nonblocking(true).map_err(|error| failed(id(), "awaiting", error))?;
        let (connection, _) =
            self.listener.accept().map_err(|error| failed(id(), "awaiting", error))?;
        let mut message = [0; MESSAGE_MAX];
        let received = seqpacket::receive(connection.as_fd(), &mut message, Some(Deadline::PASSED))
            .map_err(|error| failed(id(), "receiving", error))?;
        let master = received.descriptors.into_iter().next();
        let master =
            master.ok_or_else(|| failed(id(), "receiving", TerminalCause::NoDescriptor))?;
        if let Some(size) = process.and_then(size) {
            set_size(&master, size).map_err(|error| failed(id(), "sizing", error))?;
        }
        Ok(master)
    }
}

/// What a process asks for; one that no terminal has is none.
fn size(process: &Process) -> Option<Size> {
    let size = process.console_size()?;
    let (rows, columns) = (size.height().try_into().ok()?, size.width().try_into().ok()?);
    Some(Size { columns, rows })
}

impl Drop for Console {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.directory);
        // Empty unless another builder works on the container.
        let _used = fs::remove_dir(self.directory.parent().unwrap_or(Path::new("")));
    }
}

fn failed(id: String, operation: &'static str, source: impl Into<TerminalCause>) -> BuilderError {
    BuilderError::Terminal { id, operation, source: source.into() }
}
