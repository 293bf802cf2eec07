//! Control messages: shim ↔ zygote and shim ↔ sandbox, JSON over inherited `SOCK_SEQPACKET` socketpairs.
//!
//! Both ends come from one build and trust each other, except that a sandbox is not trusted by its shim:
//! the shim decides about [`SandboxMessage`] as about any input. File descriptors travel beside a message
//! in the order that its documentation gives.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::egress::Egress;
use super::ids::Identity;

/// Longest control message in bytes (an OCI process with a large environment fits).
pub const CONTROL_MESSAGE_MAX: usize = 160 * 1024;

/// shim → zygote: do one thing with one container, in a throw-away process (`builder`).
///
/// Descriptors: `[reply]`, and for [`Verb::Create`] the list in [`CreateDescriptor`].
/// The throw-away process writes one [`VerbReply`] to `reply` and exits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbRequest {
    /// Container id as libcontainer knows it (unique within `root`).
    pub container: String,
    /// libcontainer's state root, one per group.
    pub root: PathBuf,
    /// What to do.
    pub verb: Verb,
}

/// What a builder can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Load the modules, then build the container up to `start`.
    Create(Box<CreateSpec>),
    /// Let the container's init run its workload.
    Start,
    /// Freeze every process of the container.
    Pause,
    /// Thaw it.
    Resume,
    /// Apply new limits: OCI `LinuxResources` as JSON.
    Update {
        /// OCI `LinuxResources` as JSON.
        resources: String,
    },
    /// Remove what the container left; kill it first when it still runs.
    Delete,
}

/// Order of the descriptors behind the reply socket of [`Verb::Create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CreateDescriptor {
    /// The container's stdin.
    Stdin = 1,
    /// The container's stdout.
    Stdout = 2,
    /// The container's stderr.
    Stderr = 3,
    /// Sandbox end of the socketpair to the shim ([`SandboxMessage`]); Wasm workloads only.
    Broker = 4,
    /// Listening receiver socket; secondaries only.
    Receiver = 5,
}

/// What to build.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSpec {
    /// OCI bundle directory.
    pub bundle: PathBuf,
    /// What runs inside.
    pub workload: Workload,
}

/// What a container runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// The OCI process itself (pause, busybox, sidecars).
    Native,
    /// A WebAssembly function.
    Function(Box<FunctionLaunch>),
}

/// Everything that a sandbox needs to know about its function; made by the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionLaunch {
    /// Who it is.
    pub identity: Identity,
    /// Its pod or workflow on this host, by the id of their shim; empty when it has neither.
    pub group: String,
    /// Workflow name, empty when there is none.
    pub workflow: String,
    /// Trust group, empty when there is none.
    pub trust: String,
    /// Id of this instance: unique on this host.
    pub instance: String,
    /// Primary or secondary.
    pub role: Role,
    /// Which modes its calls may take.
    pub mode: ModeHint,
    /// Native code of the module, from our own cache; opened before the container is built.
    pub artifact: PathBuf,
    /// sha256 of the module in hexadecimal, for logs.
    pub module_digest: String,
    /// What an invocation calls.
    pub entry: Entry,
    /// How long an instance lives.
    pub isolation: Isolation,
    /// What runs in the same VM, each after what it imports itself.
    pub embedded: Vec<EmbeddedModule>,
    /// Functions that were to be embedded and are not, with the reason.
    pub not_embedded: BTreeMap<String, String>,
    /// Program arguments, `args[0]` included.
    pub args: Vec<String>,
    /// Environment as `KEY=value`.
    pub env: Vec<String>,
    /// Directories that the guest may open: paths inside the container, as the guest sees them too.
    pub preopens: Vec<PathBuf>,
    /// What else it may open; `None` when neither its module nor what is embedded in it can open anything.
    pub files: Option<Files>,
    /// Worker processes; 1 for primaries.
    pub concurrency: u32,
    /// Requests that may wait for a worker before callers get `Overloaded`.
    pub queue: u32,
    /// Longest invocation in milliseconds; `None` = as long as the caller waits (primaries: for ever).
    pub timeout_ms: Option<u64>,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Most bytes that each worker keeps for segments that it lends; 0 = it lends to nobody.
    pub pool_max: u64,
    /// Most linear memory in bytes; `None` = what the module declares.
    pub memory_max: Option<u64>,
    /// Exit after this many requests; 0 = never.
    pub max_requests: u64,
    /// Exit after this long without a request, in milliseconds; `None` = never.
    pub idle_ms: Option<u64>,
    /// Calls are parts of groups, each handled once; `None` = every call is handled alone.
    pub fan_in: Option<FanIn>,
    /// Destinations on the network; `None` = none, and no sockets.
    pub egress: Option<Egress>,
}

/// Where a sandbox has the files that its guest may open beside its mounts: the image's, read-only, with the mounted
/// directories and files in their places. In a directory of its own, because the container's root leads to `/proc`, and
/// with it to the memory of the processes that run the guest.
pub const FILES_DIR: &str = "/dev/cwasi/files";

/// Files that a guest may open beside its mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Its working directory.
    pub cwd: PathBuf,
    /// Mounts, of files too, that are shown in [`FILES_DIR`]: their places in the container.
    pub mounts: Vec<PathBuf>,
}

/// How the parts of a group wait for each other (`cwasi.fan-in`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FanIn {
    /// How many parts a group has, at most [`PARTS_MAX`](cwasi_abi::PARTS_MAX); 0 = each call says.
    pub parts: u32,
    /// How long a group waits after its first part, in milliseconds.
    pub timeout_ms: u64,
    /// What becomes of a group that is not complete by then.
    pub partial: Partial,
}

/// What becomes of a group whose parts did not all come in time (`cwasi.fan-in.partial`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partial {
    /// Every part's caller gets an error.
    #[default]
    Fail,
    /// The handler gets the parts that are there.
    Deliver,
}

/// How long an instance of a function lives (`cwasi.isolation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// For one request.
    #[default]
    Request,
    /// For one request, which finds what the worker's first instance was when it had started.
    Snapshot,
    /// As long as its worker, unless it traps or exits.
    Instance,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Snapshot => "snapshot",
            Self::Instance => "instance",
        })
    }
}

/// A module that is loaded into its caller's VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedModule {
    /// The name that others import it by, or dispatch to.
    pub name: String,
    /// Native code, from our own cache.
    pub artifact: PathBuf,
    /// sha256 of the module in hexadecimal, for logs.
    pub digest: String,
    /// True when it can be called by dispatch: it is a reactor.
    pub dispatch: bool,
    /// Why it is trusted, for people.
    pub reason: String,
}

/// What an invocation of a function calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// A WASI command: `_start` or another export without parameters; payload on stdin, response on stdout.
    Command {
        /// Name of the export.
        export: String,
    },
    /// A reactor: `cwasi_handle`.
    Reactor,
}

/// A function's role in its workflow (paper §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Starts the workflow and runs to completion.
    Primary,
    /// Is called by others until it is killed.
    Secondary,
}

/// Which modes the calls of a function may take (`cwasi.mode`). Anything but `Auto` forces that mode or fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeHint {
    /// The cheapest that there is.
    #[default]
    Auto,
    /// Function embedding only.
    Embedded,
    /// Local buffer only.
    Local,
    /// Networked buffer only, also to a callee on the same host.
    Networked,
}

impl ModeHint {
    /// As `cwasi.mode` spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Embedded => "embedded",
            Self::Local => "local",
            Self::Networked => "networked",
        }
    }
}

/// builder → shim, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerbReply {
    /// [`Verb::Create`] worked.
    Created {
        /// The init process, in the shim's pid namespace.
        pid: i32,
    },
    /// Any other verb worked.
    Done,
    /// It did not; nothing is left behind for a failed create.
    Failed {
        /// For the user: what failed and what to do.
        message: String,
    },
}

/// sandbox (init or worker) → shim, over the broker socketpair that all its processes share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMessage {
    /// Init: the workload runs; a secondary polls its receiver and has its workers. The first
    /// [`Self::Resolve`] of a primary's worker may come before it.
    Ready,
    /// Init: the workload cannot run; the process exits next.
    StartFailed {
        /// For the user.
        message: String,
    },
    /// Worker: how do I reach `target`? Descriptor: `[reply]`, a socket of the worker's own on which the
    /// shim answers with one [`ResolveReply`].
    Resolve(ResolveRequest),
    /// Worker: keep this message for `target`. Descriptors: `[reply, payload]`, a socket on which the shim
    /// answers with one [`EmitReply`], and a sealed segment.
    Emit(EmitRequest),
    /// Worker: what its calls did since the last report.
    Edges(Vec<EdgeReport>),
}

/// A one-way message; its payload comes as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitRequest {
    /// Name of the function, in the caller's scope.
    pub target: String,
    /// Length of the payload in bytes.
    pub length: u64,
    /// W3C trace context, empty when not traced.
    pub traceparent: String,
    /// Microseconds that the worker waits for the answer (`wire::remaining`).
    pub remaining_us: u64,
}

/// Whether a one-way message is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitReply {
    /// Errno number of the guest ABI; 0 = kept.
    pub errno: i32,
    /// [`Detail`](super::envelope::Detail) of the errno, by its number.
    #[serde(default)]
    pub detail: i32,
    /// Why not.
    pub message: String,
}

/// Question for a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// Name of the function to call, in the caller's scope.
    pub target: String,
    /// Instances that did not answer this caller; the shim tries others first.
    pub avoid: Vec<String>,
    /// Instances that this worker has connections to: only others will do.
    pub held: Vec<String>,
    /// Only an instance of the caller's own group will do: those that are held are not.
    pub nearer: bool,
}

/// Answer: a route, or an errno with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResolveReply {
    /// The callee runs on this host. Descriptor: `[connection]`, connected to the callee's receiver, the
    /// hello already sent by the shim.
    Local {
        /// Instance behind the connection.
        instance: String,
        /// Why this mode, for people.
        reason: String,
        /// Largest payload that the callee takes, in bytes.
        max_payload: u64,
        /// How many instances of the kind that it takes first the caller has on this host.
        instances: usize,
        /// No instance that starts later would be nearer: it is of the caller's own group, or the caller has none.
        nearest: bool,
        /// The callee is of the caller's trust group: segments may be lent.
        lends: bool,
    },
    /// Every instance on this host that would do is one that the worker holds.
    NoOther {
        /// How many there are.
        instances: usize,
    },
    /// The callee runs on other hosts. Descriptor: `[connection]`, whose other end is the shim; it takes and
    /// answers the same frames as a local callee, and sends each call to an instance that is there then.
    Networked {
        /// Why this mode, for people.
        reason: String,
        /// Largest payload that any instance takes, in bytes.
        max_payload: u64,
    },
    /// There is no route.
    Unroutable {
        /// Errno number of the guest ABI.
        errno: i32,
        /// What was looked for and where, or which rule forbids it.
        message: String,
    },
}

/// What one edge (caller → callee in one mode) did since the last report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeReport {
    /// Calling function.
    pub caller: String,
    /// The module embedded in it that called; empty = its own.
    pub module: String,
    /// Called function.
    pub callee: String,
    /// `embedded`, `local` or `networked`.
    pub mode: String,
    /// Why that mode.
    pub reason: String,
    /// Calls that ended, errors included.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Payload bytes sent.
    pub request_bytes: u64,
    /// Response bytes received.
    pub response_bytes: u64,
    /// Latency counts: key = upper bound of the bucket in nanoseconds.
    pub latency_ns: BTreeMap<u64, u64>,
}

/// A control message that is no JSON of the expected shape.
#[derive(Debug, thiserror::Error)]
#[error("control message of {length} bytes cannot be read: {source}")]
pub struct ControlCodecError {
    /// Bytes received.
    pub length: usize,
    /// What the parser says.
    #[source]
    pub source: serde_json::Error,
}

/// Bytes of a control message.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message)
        .expect("control messages have string keys and no failing serializers")
}

/// A control message from its bytes.
///
/// # Errors
/// When the bytes are no message of type `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ControlCodecError> {
    serde_json::from_slice(bytes)
        .map_err(|source| ControlCodecError { length: bytes.len(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolve_round_trips() {
        let message = SandboxMessage::Resolve(ResolveRequest {
            target: "b".into(),
            avoid: vec!["i1".into()],
            held: vec!["i2".into()],
            nearer: true,
        });
        assert_eq!(decode::<SandboxMessage>(&encode(&message)).unwrap(), message);
    }

    #[test]
    fn unknown_fields_are_refused() {
        let bytes = br#"{"resolve":{"target":"b","avoid":[],"held":[],"nearer":false,"more":1}}"#;
        assert!(decode::<SandboxMessage>(bytes).is_err());
    }
}
