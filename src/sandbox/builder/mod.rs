//! A builder: a process that does one operation on one container, answers the shim and ends.
//!
//! libcontainer's operations change their process (`oom_score_adj`, dumpable, the working directory for the notify
//! socket), so each operation gets a process of its own. A create or exec makes three children of the shim, in this
//! order: this builder, libcontainer's intermediate process, the new process. Every other verb makes only the builder.

mod causes;
mod cgroup_mounts;
mod console;
mod create;
mod devices;
mod diagnostics;
mod exec;
mod executor;
mod function;
mod function_devices;
mod function_mounts;
mod lifecycle;
mod lsm;
mod mount_sources;
mod noexec;
mod plain;
mod process;
mod propagation;
mod refused;
mod root_folders;
mod spec;
mod systemd;

use std::error::Error as _;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use libcontainer::error::LibcontainerError;
use libcontainer::oci_spec::OciSpecError;
use nix::unistd::{Pid, getpid};

use crate::cause_chain::cause_chain;
use crate::exec_filter::ExecFilterError;
use crate::{exit_codes, stderr};
use cwasi_sys::process::{SingleThreaded, exit_now};
use cwasi_sys::resolved_path::ResolveError;
use cwasi_sys::seqpacket;
use cwasi_vm::Engine;
use cwasi_vm::VmError;
use cwasi_wire::control::{self, SandboxKind, Verb, VerbReply, VerbRequest};

use self::causes::{CgroupCause, DevicesCause, MountCause, TerminalCause};
use self::diagnostics::Diagnostics;
use self::plain::plain;

/// Processes of a function with one worker: init, the worker, and the one that replaces it.
const FUNCTION_PIDS: i64 = 3;
/// How an error of a hook begins that runs when the container has ended.
const POSTSTOP: &str = "the poststop hook";
/// Longest reply message in bytes.
const REPLY_MESSAGE_MAX: usize = 8 * 1024;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum BuilderError {
    /// The shim sent too few or too many descriptors.
    #[error("create needs {expected} descriptors beside the reply socket, the shim sent {got}")]
    Descriptors { expected: usize, got: usize },
    /// `config.json` cannot be read.
    #[error("{path} cannot be read", path = path.display())]
    Spec {
        path: PathBuf,
        /// What the parser says.
        #[source]
        source: OciSpecError,
    },
    /// There is no root file system.
    #[error("root.path {path} cannot be used", path = path.display())]
    Root {
        path: PathBuf,
        /// What the file system says.
        #[source]
        source: OciSpecError,
    },
    /// A bind mount's source is missing, or not what the mount allows.
    #[error("the source of the mount at {target} cannot be used", target = target.display())]
    MountSource {
        target: PathBuf,
        #[source]
        source: Box<ResolveError>,
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
        source: MountCause,
    },
    /// The image's `/dev` is a link, which libcontainer would follow on the host.
    #[error(
        "/dev is a symbolic link in the container's root file system: its device files would be made where it leads on the \
         host; use an image whose /dev is a folder, or that has none"
    )]
    DeviceLink,
    #[error("the working directory {path} is no folder, and cannot be made", path = path.display())]
    WorkingDirectory {
        /// Its path in the container.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The container's device rules cannot be enforced.
    #[error("{operation}")]
    Devices {
        /// What cannot be done.
        operation: &'static str,
        #[source]
        source: DevicesCause,
    },
    /// The loopback device of the container's network cannot be brought up.
    #[error("the loopback device of {namespace} cannot be brought up", namespace = namespace.display())]
    Loopback {
        namespace: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Its mounts would be made in a mount namespace of others.
    #[error(
        "the specification has no mount namespace of the container's own, so its mounts would be made on the host: add \
         {{\"type\": \"mount\"}} to linux.namespaces, without a path of the host's namespace"
    )]
    HostMounts,
    #[error("process.args is empty: name the program to run")]
    NoProgram,
    #[error("linux.netDevices names {name}, and this host has no such network device")]
    NoNetworkDevice { name: String },
    /// A field that would be ignored.
    #[error("{field} cannot be honoured: {why}")]
    Unsupported { field: &'static str, why: &'static str },
    /// A label without SELinux.
    #[error(
        "{field} is {label:?}, and SELinux is disabled or not supported on this node: leave the label out, or enable SELinux"
    )]
    NoSelinux { field: &'static str, label: String },
    /// The kernel has refused a process in the container's cgroup.
    #[error(
        "the container cannot be created with a pids limit of {limit} (linux.resources.pids.limit): its first process is \
         made by another one, which counts too; set a limit of at least 2, and of {FUNCTION_PIDS} for a function"
    )]
    PidsLimit {
        limit: i64,
        #[source]
        source: Box<LibcontainerError>,
    },
    #[error(
        "the container asks for a user namespace, for which libcontainer always uses the systemd cgroup manager; that is not \
         tested with this runtime: remove the user namespace from the container"
    )]
    UserNamespace,
    #[error("the process to execute in container {id} cannot be read")]
    Process {
        id: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The terminal of a process does not arrive.
    #[error("{operation} the terminal of container {id} failed")]
    Terminal {
        /// What was done, as a participle.
        operation: &'static str,
        id: String,
        /// What the system says.
        #[source]
        source: TerminalCause,
    },
    #[error("the container cannot be {done}")]
    Container {
        id: String,
        /// What was to be done, as a participle.
        done: &'static str,
        #[source]
        source: Box<LibcontainerError>,
    },
    /// The container's process ended without a word.
    #[error(
        "the process of the container died while it was set up; a seccomp profile that kills it, or a limit of memory or \
         of descriptors (RLIMIT_NOFILE) that is too small, does that"
    )]
    Died {
        id: String,
        #[source]
        source: Box<LibcontainerError>,
    },
    /// libcontainer built a container without a pid.
    #[error("container {id} has no init process")]
    NoPid { id: String },
    /// Resources of an update are no OCI `LinuxResources`.
    #[error("the new resources of container {id} cannot be read")]
    Resources {
        id: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The container's cgroup cannot be changed.
    #[error("the cgroup {path} of container {id} cannot be changed", path = path.display())]
    Cgroup {
        id: String,
        /// Path within the hierarchies.
        path: PathBuf,
        #[source]
        source: Box<CgroupCause>,
    },
    /// A file of the container's state cannot be removed.
    #[error("{path} cannot be removed", path = path.display())]
    State {
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
    /// A native program, where there are no containers.
    #[error("{id} is no WebAssembly function, and only functions run without a container")]
    NotAFunction { id: String },
    /// A process without a container.
    #[error("{operation} {path} failed", path = path.display())]
    Init {
        /// What was done, as a participle.
        operation: &'static str,
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
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

    /// Does it, answers and ends the process. Functions run in the engine `E`.
    pub fn serve<E: Engine>(self) -> ! {
        let Self { threads, request, reply_to, descriptors } = self;
        let builder = getpid();
        let diagnostics = Diagnostics::install();
        let outcome =
            catch_unwind(AssertUnwindSafe(|| perform::<E>(threads, &request, descriptors)));
        if getpid() != builder {
            // A panic in a process that libcontainer cloned unwound to here: the answer is not its to give.
            exit_now(exit_codes::PANICKED);
        }
        if let (Verb::Delete, Ok(Ok(_deleted))) = (&request.verb, &outcome) {
            // A hook that fails there is no error.
            let lines = diagnostics.all_lines();
            lines.iter().filter(|line| line.contains(POSTSTOP)).for_each(|line| stderr::line(line));
        }
        let Done { reply, terminal } = match outcome {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => failed(&error, &diagnostics).into(),
            Err(_panic) => failed(&BuilderError::Panicked, &diagnostics).into(),
        };
        let message = control::encode(&reply);
        let descriptors: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
        match seqpacket::send(reply_to.as_fd(), &[&message], &descriptors, None) {
            Ok(()) => exit_now(0),
            Err(_shim_gone) => exit_now(exit_codes::UNANSWERED),
        }
    }
}

/// What the shim gets.
#[derive(Debug)]
struct Done {
    reply: VerbReply,
    /// Master of the new process's terminal.
    terminal: Option<OwnedFd>,
}

impl From<VerbReply> for Done {
    fn from(reply: VerbReply) -> Self {
        Self { reply, terminal: None }
    }
}

/// A process that a builder made.
#[derive(Debug)]
struct Made {
    pid: Pid,
    /// Master of its terminal.
    terminal: Option<OwnedFd>,
}

impl From<Made> for Done {
    fn from(made: Made) -> Self {
        Self { reply: VerbReply::Created { pid: made.pid.as_raw() }, terminal: made.terminal }
    }
}

fn perform<E: Engine>(
    threads: SingleThreaded,
    request: &VerbRequest,
    descriptors: Vec<OwnedFd>,
) -> Result<Done, BuilderError> {
    let done = |()| VerbReply::Done.into();
    match &request.verb {
        Verb::Create(spec) => {
            let create = match spec.sandbox {
                SandboxKind::Container => create::create::<E>,
                SandboxKind::Process => process::create::<E>,
            };
            create(threads, request, spec, descriptors).map(Into::into)
        }
        Verb::Exec(spec) => exec::exec(request, spec, descriptors).map(Into::into),
        Verb::Start => lifecycle::start(request).map(done),
        Verb::Pause => lifecycle::pause(request).map(done),
        Verb::Resume => lifecycle::resume(request).map(done),
        Verb::Update { resources } => lifecycle::update(request, resources).map(done),
        Verb::Delete => lifecycle::delete(request).map(done),
    }
}

/// The reply for a failure: the error with its sources, and what libcontainer logged on the way.
fn failed(error: &BuilderError, diagnostics: &Diagnostics) -> VerbReply {
    let mut message = plain(&cause_chain(error));
    // What libcontainer's processes pass on may have been wrappers alone.
    let mut separator =
        if error.source().is_some() && message == error.to_string() { ": " } else { "; " };
    for line in diagnostics
        .lines()
        .iter()
        .map(|line| plain(line).trim().to_owned())
        .filter(|it| !it.is_empty())
    {
        if message.len() + line.len() > REPLY_MESSAGE_MAX {
            break;
        }
        // Wrappers are logged too: what counts is what they wrap.
        let cause = line.rsplit(": ").next().unwrap_or(&line);
        if !message.contains(cause) {
            message.push_str(std::mem::replace(&mut separator, "; "));
            message.push_str(&line);
        }
    }
    message.truncate(message.floor_char_boundary(REPLY_MESSAGE_MAX));
    VerbReply::Failed { message }
}
