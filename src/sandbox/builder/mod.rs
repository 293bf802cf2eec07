//! A builder: a process that does one thing with one container, answers the shim and ends.
//!
//! libcontainer's operations change their process (`oom_score_adj`, dumpable, working directory for the
//! notify socket): here nobody lives on with that. Children of the shim that come from one create, in
//! this order: this builder, libcontainer's intermediate process, the container's init. Every other verb
//! makes one child, the builder.

mod cgroup_mounts;
mod create;
mod devices;
mod diagnostics;
mod lifecycle;
mod noexec;
mod propagation;
mod spec;

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use libcontainer::error::LibcontainerError;
use nix::unistd::getpid;

use crate::sys::exec_filter::ExecFilterError;
use crate::sys::process::{SingleThreaded, exit_now};
use crate::sys::seqpacket;
use crate::vm::VmError;
use crate::wire::control::{self, Verb, VerbReply, VerbRequest};

pub use self::diagnostics::Diagnostics;
pub use self::spec::HOME_OF_USER;

/// Exit code of a builder that could not answer.
pub const EXIT_UNANSWERED: i32 = 120;
/// Exit code of a process of a container in which host code panicked.
pub const EXIT_PANICKED: i32 = 121;
/// Longest reply message in bytes.
const REPLY_MESSAGE_MAX: usize = 8 * 1024;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum BuilderError {
    /// The shim sent too few or too many descriptors.
    #[error("create needs {expected} descriptors beside the reply socket, the shim sent {got}")]
    Descriptors {
        /// Needed number.
        expected: usize,
        /// Sent number.
        got: usize,
    },
    /// `config.json` cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A bind mount's source cannot be prepared.
    #[error("{operation} {path} failed", path = path.display())]
    Mount {
        /// What was done, as a participle.
        operation: &'static str,
        /// The source, or its place among the staged ones.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The container's device rules cannot be enforced.
    #[error("{operation}")]
    Devices {
        /// What cannot be done.
        operation: &'static str,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A user namespace was asked for.
    #[error(
        "the container asks for a user namespace; libcontainer can only build one with the systemd cgroup \
         manager, which this build does not use: remove the user namespace from the container"
    )]
    UserNamespace,
    /// A terminal was asked for.
    #[error("the container asks for a terminal, which is not yet available: run it without -t")]
    Terminal,
    /// libcontainer refused.
    #[error("container {id} cannot be {done}")]
    Container {
        /// Container id.
        id: String,
        /// What was to be done, as a participle.
        done: &'static str,
        /// What libcontainer says.
        #[source]
        source: Box<LibcontainerError>,
    },
    /// The container's process ended without a word.
    #[error(
        "the process of container {id} died while it was set up; a seccomp profile that kills it, or a limit of memory or \
         of descriptors (RLIMIT_NOFILE) that is too small, does that"
    )]
    Died {
        /// Container id.
        id: String,
        /// What libcontainer says.
        #[source]
        source: Box<LibcontainerError>,
    },
    /// libcontainer built a container without a pid.
    #[error("container {id} has no init process")]
    NoPid {
        /// Container id.
        id: String,
    },
    /// Resources of an update are no OCI `LinuxResources`.
    #[error("the new resources of container {id} cannot be read")]
    Resources {
        /// Container id.
        id: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The container's cgroup cannot be changed.
    #[error("the cgroup {path} of container {id} cannot be changed", path = path.display())]
    Cgroup {
        /// Container id.
        id: String,
        /// Path within the hierarchies.
        path: PathBuf,
        /// What libcgroups says.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file of the container's state cannot be removed.
    #[error("{path} cannot be removed", path = path.display())]
    State {
        /// The path.
        path: PathBuf,
        /// What the file system says.
        #[source]
        source: std::io::Error,
    },
    /// The function's code cannot be loaded.
    #[error("function {function} cannot be loaded")]
    Module {
        /// Name of the function.
        function: String,
        /// What the engine says.
        #[source]
        source: VmError,
    },
    /// Native code of the image cannot be kept out.
    #[error(transparent)]
    ExecFilter(#[from] ExecFilterError),
    /// The function's stderr cannot be opened for its log.
    #[error("the stderr of function {function} cannot be opened")]
    Stderr {
        /// Name of the function.
        function: String,
        /// What the file system says.
        #[source]
        source: std::io::Error,
    },
    /// A panic.
    #[error("the builder panicked, the shim's log says where")]
    Panicked,
}

/// What one builder has to do.
#[derive(Debug)]
pub struct Task {
    threads: SingleThreaded,
    request: VerbRequest,
    reply_to: OwnedFd,
    descriptors: Vec<OwnedFd>,
}

impl Task {
    /// A task from a request and its descriptors; `None` when there is no descriptor to answer on.
    #[must_use]
    pub fn new(
        threads: SingleThreaded,
        request: VerbRequest,
        mut descriptors: Vec<OwnedFd>,
    ) -> Option<Self> {
        if descriptors.is_empty() {
            return None;
        }
        let reply_to = descriptors.remove(0);
        Some(Self { threads, request, reply_to, descriptors })
    }

    /// Does it, answers and ends the process.
    pub fn serve(self) -> ! {
        let Self { threads, request, reply_to, descriptors } = self;
        let builder = getpid();
        let diagnostics = Diagnostics::install();
        let outcome = catch_unwind(AssertUnwindSafe(|| perform(threads, &request, descriptors)));
        if getpid() != builder {
            // A panic in a process that libcontainer cloned unwound to here: the answer is not its to give.
            exit_now(EXIT_PANICKED);
        }
        let reply = match outcome {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => failed(&error, &diagnostics),
            Err(_panic) => failed(&BuilderError::Panicked, &diagnostics),
        };
        let message = control::encode(&reply);
        match seqpacket::send(reply_to.as_fd(), &[&message], &[], None) {
            Ok(()) => exit_now(0),
            Err(_shim_gone) => exit_now(EXIT_UNANSWERED),
        }
    }
}

fn perform(
    threads: SingleThreaded,
    request: &VerbRequest,
    descriptors: Vec<OwnedFd>,
) -> Result<VerbReply, BuilderError> {
    match &request.verb {
        Verb::Create(spec) => create::create(threads, request, spec, descriptors)
            .map(|pid| VerbReply::Created { pid: pid.as_raw() }),
        Verb::Start => lifecycle::start(request).map(|()| VerbReply::Done),
        Verb::Pause => lifecycle::pause(request).map(|()| VerbReply::Done),
        Verb::Resume => lifecycle::resume(request).map(|()| VerbReply::Done),
        Verb::Update { resources } => {
            lifecycle::update(request, resources).map(|()| VerbReply::Done)
        }
        Verb::Delete => lifecycle::delete(request).map(|()| VerbReply::Done),
    }
}

/// The reply for a failure: the error with its sources, and what libcontainer logged on the way.
fn failed(error: &BuilderError, diagnostics: &Diagnostics) -> VerbReply {
    let mut message = chain(error);
    for line in diagnostics.lines() {
        if message.len() + line.len() > REPLY_MESSAGE_MAX {
            break;
        }
        // Wrappers are logged too: what counts is what they wrap.
        let cause = line.rsplit(": ").next().unwrap_or(&line);
        if !message.contains(cause) {
            message.push_str("; ");
            message.push_str(&line);
        }
    }
    message.truncate(message.floor_char_boundary(REPLY_MESSAGE_MAX));
    VerbReply::Failed { message }
}

/// An error and its sources as one sentence; a source that its wrapper repeats is said once.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_each_cause_once() {
        let error = BuilderError::Container {
            id: "a".into(),
            done: "started",
            source: Box::new(LibcontainerError::Other("no such thing".into())),
        };
        assert_eq!(chain(&error), "container a cannot be started: no such thing");
    }
}
