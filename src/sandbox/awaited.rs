//! Code that comes after the container's start ([`FunctionLaunch::awaits_code`]): init waits for it at its receiver,
//! and loads it before it accepts callers. Runs in sandbox init.
//!
//! Invariants: only shims reach a receiver, so the launch is as trusted as one that the builder gets. The descriptors
//! of the code are closed when it is loaded: no worker has them. Until then init runs the runtime's own code only, and
//! has no capabilities beyond the container's.

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::cause_chain::cause_chain;
use crate::document::{self, DocumentError};
use crate::exit_codes;
use crate::inherited::Sandbox;
use crate::init::signals::Signals;
use crate::memory_ceiling;
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_vm::{Module, VmError};
use cwasi_wire::control::{CONTROL_MESSAGE_MAX, FunctionLaunch};

/// How long init waits for the launch of a shim that has connected.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

/// The code of a function.
#[derive(Debug)]
pub enum FunctionCode<M> {
    Loaded(M),
    /// Loads it, at the paths of the launch that has come.
    Awaited(fn(&FunctionLaunch) -> Result<M, VmError>),
}

impl<M: Module> FunctionCode<M> {
    /// As [`Module::descriptors`].
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Loaded(module) => module.descriptors(),
            Self::Awaited(_) => Vec::new(),
        }
    }

    /// As [`Module::forked`].
    pub fn forked(&self) {
        if let Self::Loaded(module) = self {
            module.forked();
        }
    }
}

/// Why awaited code does not run.
#[derive(Debug, thiserror::Error)]
enum AwaitedError {
    #[error("a function that waits for its code was started without its receiver socket")]
    NoReceiver,
    #[error("the code of the function cannot be waited for: {0}")]
    Wait(#[from] io::Error),
    #[error("the launch of the function cannot be received: {0}")]
    Receive(#[from] SocketError),
    #[error("the launch of the function cannot be read: {0}")]
    Decode(#[from] DocumentError),
    #[error("the launch has {files} files of code for {modules} modules")]
    Files { files: usize, modules: usize },
    /// Whoever made the container's `/proc` is not the kernel.
    #[error(
        "the code cannot be opened by its descriptor: {path} is another file; the container needs a mount of type proc at /proc",
        path = .path.display()
    )]
    Proc { path: PathBuf },
    #[error(transparent)]
    Load(#[from] VmError),
}

/// What init has waited for.
enum Arrival<M> {
    Code(Box<FunctionLaunch>, M),
    Stopped(Signal),
    /// The shim has ended.
    Abandoned,
}

/// Waits for code that comes later and loads it; returns at once if it is loaded.
///
/// # Errors
/// The exit code, when the function does not run.
pub fn load<M: Module>(sandbox: Sandbox<FunctionCode<M>>) -> Result<Sandbox<M>, i32> {
    let arrived = match &sandbox.module {
        FunctionCode::Loaded(_) => None,
        FunctionCode::Awaited(load) => match wait(&sandbox, *load) {
            Ok(Arrival::Code(launch, module)) => Some((*launch, module)),
            Ok(Arrival::Stopped(signal)) => return Err(128 + signal as i32),
            Ok(Arrival::Abandoned) => return Err(exit_codes::START_FAILED),
            Err(error) => return Err(sandbox.start_failed(&cause_chain(&error))),
        },
    };
    let Sandbox { launch, module, threads, broker, receiver, host_paths, .. } = sandbox;
    let (launch, module) = match (arrived, module) {
        (Some(arrived), _) => arrived,
        (None, FunctionCode::Loaded(module)) => (launch, module),
        (None, FunctionCode::Awaited(_)) => return Err(exit_codes::START_FAILED),
    };
    // Before Landlock, which hides `/proc`.
    let memory_ceiling = memory_ceiling::ceiling(&launch);
    Ok(Sandbox { launch, module, threads, broker, receiver, host_paths, memory_ceiling })
}

fn wait<M: Module>(
    sandbox: &Sandbox<FunctionCode<M>>,
    load: fn(&FunctionLaunch) -> Result<M, VmError>,
) -> Result<Arrival<M>, AwaitedError> {
    let Some(receiver) = &sandbox.receiver else { return Err(AwaitedError::NoReceiver) };
    let mut signals = Signals::new().map_err(io::Error::from)?;
    let shim = loop {
        let polled = [
            (receiver.as_fd(), PollFlags::POLLIN),
            (signals.as_fd(), PollFlags::POLLIN),
            // Its end is always reported.
            (sandbox.broker.as_fd(), PollFlags::empty()),
        ];
        let mut polled = polled.map(|(fd, events)| PollFd::new(fd, events));
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let has_ended = polled[2].revents().is_some_and(|events| !events.is_empty());
        if let Some(signal) = signals.take() {
            return Ok(Arrival::Stopped(signal));
        }
        if has_ended {
            return Ok(Arrival::Abandoned);
        }
        if let Some(shim) = seqpacket::accept_from(receiver.as_fd())? {
            break shim;
        }
    };
    let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
    let deadline = Some(Deadline::after(LAUNCH_WAIT));
    let received = seqpacket::receive(shim.as_fd(), &mut buffer, deadline)?;
    let mut files = received.descriptors;
    let launch: FunctionLaunch = document::read(&buffer[..received.len], &mut files, 0)?;
    let opened = opened(launch, &files)?;
    let module = load(&opened)?;
    Ok(Arrival::Code(Box::new(opened), module))
}

/// The launch with the paths of its code's descriptors.
fn opened(mut launch: FunctionLaunch, files: &[OwnedFd]) -> Result<FunctionLaunch, AwaitedError> {
    let modules = 1 + launch.embedded.len();
    if files.len() != modules {
        return Err(AwaitedError::Files { files: files.len(), modules });
    }
    let embedded = launch.embedded.iter_mut().map(|module| &mut module.artifact);
    let artifacts = std::iter::once(&mut launch.artifact).chain(embedded);
    for (artifact, file) in artifacts.zip(files) {
        *artifact = path_of(file)?;
    }
    Ok(launch)
}

/// The path at which an engine finds a file that is open. An image cannot put another one there.
fn path_of(file: &OwnedFd) -> Result<PathBuf, AwaitedError> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let opened = File::from(file.try_clone()?).metadata()?;
    let is_it = metadata(&path)
        .is_ok_and(|found| (found.dev(), found.ino()) == (opened.dev(), opened.ino()));
    if is_it { Ok(path) } else { Err(AwaitedError::Proc { path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_found_by_its_descriptor() {
        let file = tempfile::tempfile().unwrap();
        let (expected, fd) = (file.metadata().unwrap().ino(), OwnedFd::from(file));
        assert_eq!(metadata(path_of(&fd).unwrap()).unwrap().ino(), expected);
    }
}
