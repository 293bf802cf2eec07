//! Control messages: shim ↔ zygote and shim ↔ sandbox, JSON over inherited `SOCK_SEQPACKET` socketpairs.
//!
//! File descriptors travel beside a message, in the order that its documentation gives.
//!
//! Invariant: both ends are of one version ([`VERSION`]) and trust each other, except that a shim treats [`SandboxMessage`] as
//! untrusted input.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::trace::SpanReport;

mod function;

pub use function::{
    EmbeddedModule, Entry, FILES_DIR, FanIn, Files, FunctionLaunch, Isolation, ModeHint, Partial,
    Role,
};

/// Version of this build. Control messages have none of their own, so shim and sandbox must have the same one: it is the
/// zygote's greeting.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Longest control message in bytes.
pub const CONTROL_MESSAGE_MAX: usize = 160 * 1024;
/// Longest request in bytes. A program's arguments and environment may have 2 MiB, and JSON has up to six bytes for one.
pub const DOCUMENT_MAX: usize = 16 << 20;

/// In the place of a [`VerbRequest`] or a [`FunctionLaunch`] that is longer than a message: it is in a sealed memfd, the
/// first descriptor of a launch, and the one after the reply socket of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// Length in bytes.
    pub document: u64,
}

/// shim → zygote: one operation on one container, in a builder process.
///
/// Descriptors: `[reply]`, and for [`Verb::Create`] and [`Verb::Exec`] the list in [`CreateDescriptor`]. The builder
/// writes one [`VerbReply`] to `reply` and exits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerbRequest {
    /// libcontainer's container id, unique within `root`.
    pub container: String,
    /// libcontainer's state root, one per group.
    pub root: PathBuf,
    pub verb: Verb,
}

/// Operations of a builder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Load the modules, then build the container up to `start`.
    Create(Box<CreateSpec>),
    /// Let the container's init run its workload.
    Start,
    /// Freeze every process of the container.
    Pause,
    Resume,
    /// Apply new limits: OCI `LinuxResources` as JSON.
    Update {
        /// OCI `LinuxResources` as JSON.
        resources: String,
    },
    /// Run another process in a native container.
    Exec(Box<ExecSpec>),
    /// Remove everything that the container left; kill it first if it runs.
    Delete,
}

/// A process to run in a container that exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// OCI bundle directory of the container.
    pub bundle: PathBuf,
    /// OCI `Process` as JSON.
    pub process: String,
}

/// Order of the descriptors behind the reply socket of [`Verb::Create`], and of [`Verb::Exec`] up to stderr. A process
/// with a terminal does not use its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CreateDescriptor {
    Stdin = 1,
    Stdout = 2,
    Stderr = 3,
    /// Sandbox end of the socketpair to the shim ([`SandboxMessage`]); Wasm workloads only.
    Broker = 4,
    /// Listening receiver socket; secondaries only.
    Receiver = 5,
}

/// Directory in libcontainer's state root in which builders work, one entry for each container; containerd's ids begin with
/// a letter or digit.
pub const COPIES_DIR: &str = ".specs";

/// A container to build.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSpec {
    /// The container's id in containerd.
    pub id: String,
    pub bundle: PathBuf,
    /// The bundle's `config.json` as the shim has read and checked it. Nobody reads the file again to create.
    pub specification: String,
    /// systemd makes the container's cgroup, as a scope.
    pub systemd_cgroup: bool,
    /// Where the workload runs.
    pub sandbox: SandboxKind,
    pub workload: Workload,
}

/// Where a workload runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxKind {
    #[default]
    Container,
    /// In processes of the user who started the daemon (`cwasi run --local`). Functions only.
    Process,
}

/// Socket in a container's directory of the state root, on which an init that is built waits for
/// [`START_WORD`]. libcontainer's name.
pub const START_SOCKET: &str = "notify.sock";
/// Lets an init run its workload. libcontainer's word.
pub const START_WORD: &[u8] = b"start container";

/// The workload of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// The OCI process itself (pause, busybox, sidecars).
    Native,
    Function(Box<FunctionLaunch>),
}

/// builder → shim, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerbReply {
    /// [`Verb::Create`] or [`Verb::Exec`] worked. Descriptor: the master of its terminal, if it asked for one.
    Created {
        /// The new process, in the shim's pid namespace: the container's init, or the executed one.
        pid: i32,
    },
    /// Any other verb worked.
    Done,
    /// The verb failed; a failed create leaves nothing.
    Failed {
        /// For the user: the fault and the remedy.
        message: String,
    },
}

/// sandbox (init or worker) → shim, over the broker socketpair that all its processes share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMessage {
    /// Init: the workload runs; a secondary polls its receiver and has its workers. The first [`Self::Resolve`] of a
    /// primary's worker may arrive earlier.
    Ready,
    /// Init: the workload cannot run; the process exits next.
    StartFailed { message: String },
    /// Worker: requests a route to `target`. Descriptor: `[reply]`, a socket of the worker's own, on which the shim
    /// answers with one [`ResolveReply`].
    Resolve(ResolveRequest),
    /// Worker: requests to store a message for `target`. Descriptors: `[reply, payload]`, a socket on which the shim
    /// answers with one [`EmitReply`], and a sealed segment.
    Emit(EmitRequest),
    /// Worker: metrics of its calls since the last report.
    Edges(Vec<EdgeReport>),
    /// Init of a secondary: its workers and its queue now.
    Function(FunctionReport),
    /// Worker: spans of its traced calls since the last report.
    Spans(SpanReport),
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
    /// What goes with it (`wire::trace_headers`).
    pub tracestate: String,
    /// Longest wait of the worker for the answer in microseconds (`wire::remaining`).
    pub remaining_us: u64,
}

/// Result of storing a one-way message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmitReply {
    /// Errno number of the guest ABI; 0 = stored.
    pub errno: i32,
    /// [`Detail`](super::envelope::Detail) of the errno, by its number.
    #[serde(default)]
    pub detail: i32,
    pub message: String,
}

/// A request for a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// Name of the function to call, in the caller's scope.
    pub target: String,
    /// Instances that recently did not answer this caller; used last.
    pub avoid: Vec<String>,
    /// Instances with connections from this worker; not used.
    pub held: Vec<String>,
    /// True for an instance of the caller's own group only; held ones do not count.
    pub nearer: bool,
}

/// A route, or an errno with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResolveReply {
    /// The callee runs on this host. Descriptor: `[connection]` to the callee's receiver, on which the shim has sent
    /// the hello.
    Local {
        /// Instance behind the connection.
        instance: String,
        /// The reason for the mode, for people.
        reason: String,
        /// Largest payload of the callee in bytes.
        max_payload: u64,
        /// Most bytes of a request's metadata that it takes; 0 = it is of the version before.
        #[serde(default)]
        max_head: u32,
        /// Number of instances on this host of the kind that comes first for the caller.
        instances: usize,
        /// True if the callee is of the caller's own group, or the caller has none: no later instance comes before
        /// it.
        nearest: bool,
        /// The callee is of the caller's trust group: segments may be lent.
        lends: bool,
    },
    /// The worker holds every suitable instance on this host.
    NoOther { instances: usize },
    /// The callee runs on other hosts. Descriptor: `[connection]`, whose other end is the shim. It takes and answers
    /// the same frames as a local callee, and sends each call to a running instance.
    Networked {
        /// The reason for the mode, for people.
        reason: String,
        /// Largest payload of any instance in bytes.
        max_payload: u64,
        /// Most bytes of a request's metadata that any instance takes; 0 = all are of the version before.
        #[serde(default)]
        max_head: u32,
    },
    /// There is no route.
    Unroutable {
        /// Errno number of the guest ABI.
        errno: i32,
        /// What the shim looked for and where, or the rule that forbids it.
        message: String,
    },
}

/// Metrics of one edge (caller → callee in one mode) since the last report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeReport {
    pub caller: String,
    /// The calling embedded module; empty = the function itself.
    pub module: String,
    pub callee: String,
    /// `embedded`, `local` or `networked`.
    pub mode: String,
    /// Of `networked`: `direct` or `redis`, or empty when no instance was tried.
    #[serde(default)]
    pub path: String,
    /// The reason for the mode.
    pub reason: String,
    /// Ended calls, errors included.
    pub calls: u64,
    /// Calls with an error, by kind (`cwasi_dispatcher::edges`).
    pub errors: BTreeMap<String, u64>,
    /// Payload bytes sent.
    pub request_bytes: u64,
    /// Response bytes received.
    pub response_bytes: u64,
    /// Sum of all latencies in nanoseconds.
    pub latency_sum_ns: u64,
    /// Latency counts: key = upper bound of the bucket in nanoseconds.
    pub latency_ns: BTreeMap<u64, u64>,
}

/// Workers and queue of one instance of a secondary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionReport {
    pub workers: u64,
    /// Of these, workers that read, run or were assigned a request.
    pub busy: u64,
    /// Requests that wait in init's queue.
    pub queued: u64,
    /// Requests that were refused because the queue was full, since the instance started.
    pub refused: u64,
    /// Parts of a fan-in that wait for the others of their group.
    #[serde(default)]
    pub waiting_parts: u64,
    /// Bytes of the segments that the workers keep to lend them.
    pub pool_bytes: u64,
    /// Differs from that of an earlier report if workers have begun requests since then.
    #[serde(default)]
    pub turns: u64,
}

/// A control message that is not JSON of the expected shape.
#[derive(Debug, thiserror::Error)]
#[error("control message of {length} bytes cannot be read: {source}")]
pub struct ControlCodecError {
    /// Bytes received.
    pub length: usize,
    #[source]
    pub source: serde_json::Error,
}

/// Bytes of a control message.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message)
        .expect("control messages have string keys and no failing serializers")
}

/// Decodes a control message.
///
/// # Errors
/// When the bytes are not a message of type `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ControlCodecError> {
    serde_json::from_slice(bytes)
        .map_err(|source| ControlCodecError { length: bytes.len(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_refused() {
        let bytes = br#"{"resolve":{"target":"b","avoid":[],"held":[],"nearer":false,"more":1}}"#;
        assert!(decode::<SandboxMessage>(bytes).is_err());
    }
}
