//! The function of a sandbox, as its shim describes it. Pure data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::Egress;
use crate::ids::Identity;
use crate::trace::TraceStart;

/// A sandbox's settings for its function; the coordinator makes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionLaunch {
    pub identity: Identity,
    /// Id of its pod's or workflow's shim on this host; empty without both.
    pub group: String,
    /// Workflow name; empty without one.
    pub workflow: String,
    /// Trust group; empty without one.
    pub trust: String,
    /// Id of this instance: unique on this host.
    pub instance: String,
    pub role: Role,
    /// Mode of its calls.
    pub mode: ModeHint,
    /// Native code of the module, from our own cache; opened before the container is built.
    pub artifact: PathBuf,
    /// sha256 of the module in hexadecimal, for logs.
    pub module_digest: String,
    /// Entry of an invocation.
    pub entry: Entry,
    /// Lifetime of an instance.
    pub isolation: Isolation,
    /// Embedded modules, each after its own imports.
    pub embedded: Vec<EmbeddedModule>,
    /// Functions of `cwasi.embed` that are not embedded, with the reason.
    pub not_embedded: BTreeMap<String, String>,
    /// Program arguments, `args[0]` included.
    pub args: Vec<String>,
    /// Environment as `KEY=value`.
    pub env: Vec<String>,
    /// Directories that the guest may open: paths inside the container, which the guest also uses.
    pub preopens: Vec<PathBuf>,
    /// Other files that it may open; `None` if none of its modules can open files.
    pub files: Option<Files>,
    /// Worker processes that it always has; 1 for primaries.
    pub concurrency: u32,
    /// Most worker processes while requests wait; not above `concurrency` when their number is fixed.
    pub workers_max: u32,
    /// Thousandths of a processor that its container may use; `None` = no limit.
    pub cpu_milli: Option<u64>,
    /// Most requests that wait for a worker before callers get `Overloaded`.
    pub queue: u32,
    /// Longest invocation in milliseconds; `None` = until the caller's deadline (primaries: no limit).
    pub timeout_ms: Option<u64>,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Most bytes of metadata beside a request or a response.
    pub max_head: u32,
    /// Most bytes that each worker keeps for leased segments; 0 = it lends none.
    pub pool_max: u64,
    /// Largest linear memory in bytes; `None` = the module's own maximum.
    pub memory_max: Option<u64>,
    /// Its container's memory limit in bytes; `None` = it has none.
    pub container_memory: Option<u64>,
    /// Exit after this many requests; 0 = never.
    pub max_requests: u64,
    /// End the workers after this time without a request, in milliseconds, until the next one; `None` = never.
    pub idle_ms: Option<u64>,
    /// Settings of a fan-in; `None` = every call is handled alone.
    pub fan_in: Option<FanIn>,
    /// Allowed destinations; `None` = no sockets.
    pub egress: Option<Egress>,
    /// When its invocations begin traces, and whether its spans are recorded.
    pub trace: TraceStart,
    /// True if its code comes later: init waits at its receiver for another [`FunctionLaunch`], and runs that one. Its
    /// descriptors are the native code of the module, then of the embedded ones in their order.
    #[serde(default)]
    pub awaits_code: bool,
    /// Lines of the runtime on its stderr begin with their times: it leads into a file, and no other process adds them.
    pub log_has_times: bool,
}

impl FunctionLaunch {
    /// The memory, in bytes, of which payloads and answers may hold a part: the smaller one of the limits.
    #[must_use]
    pub fn memory_bound(&self) -> Option<u64> {
        [self.memory_max, self.container_memory].into_iter().flatten().min()
    }

    /// Workers that it always has.
    #[must_use]
    pub fn least_workers(&self) -> usize {
        usize::try_from(self.concurrency).unwrap_or(usize::MAX).max(1)
    }

    /// Workers that it has at most, while requests wait.
    #[must_use]
    pub fn most_workers(&self) -> usize {
        usize::try_from(self.workers_max).unwrap_or(usize::MAX).max(self.least_workers())
    }

    /// Most bytes that a worker keeps for leased segments. Those that come while requests wait share what one of the
    /// others has.
    #[must_use]
    pub fn pool_of(&self, worker: u64) -> u64 {
        let is_added = worker >= u64::from(self.concurrency);
        if is_added { self.pool_max / u64::from(self.workers_max.max(1)) } else { self.pool_max }
    }
}

/// The guest's view of the image's files: read-only, with mounted directories and files in their places. It has a
/// directory of its own, because the container's root contains `/proc`, which leads to the memory of the processes
/// that run the guest.
pub const FILES_DIR: &str = "/dev/cwasi/files";

/// Files beside its mounts that a guest may open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    pub cwd: PathBuf,
    /// Mounts, single files included, that [`FILES_DIR`] shows: their paths in the container.
    pub mounts: Vec<PathBuf>,
}

/// Settings of a fan-in (`cwasi.fan-in`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FanIn {
    /// Parts of a group, at most [`PARTS_MAX`](cwasi_abi::PARTS_MAX); 0 = each call gives the number.
    pub parts: u32,
    /// Longest wait of a group after its first part, in milliseconds.
    pub timeout_ms: u64,
    /// Treatment of an incomplete group.
    pub partial: Partial,
}

/// Treatment of an incomplete group (`cwasi.fan-in.partial`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partial {
    /// All parts' callers get an error.
    #[default]
    Fail,
    /// The handler gets the present parts.
    Deliver,
}

/// Lifetime of an instance (`cwasi.isolation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    #[default]
    Request,
    /// For one request, which finds the initial state of the worker's first instance.
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedModule {
    /// The name by which others import or call it.
    pub name: String,
    /// Native code, from our own cache.
    pub artifact: PathBuf,
    /// sha256 of the module in hexadecimal, for logs.
    pub digest: String,
    /// True if `request_dispatcher` can call it: it is a reactor.
    pub dispatch: bool,
    /// The reason for trust, for people.
    pub reason: String,
}

/// The entry of an invocation.
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
    /// A callee of the paper's prototype: `cwasi_function`; payload as an argument, the result in a sentence.
    Prototype,
}

/// A function's role in its workflow (paper §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Starts the workflow and runs to completion.
    Primary,
    /// Serves calls until it is killed.
    Secondary,
}

/// Mode of a function's calls (`cwasi.mode`). Anything but `Auto` forces that mode or fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeHint {
    /// The cheapest possible mode.
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
    /// True if a call may stay in the caller's VM.
    #[must_use]
    pub const fn allows_embedding(self) -> bool {
        matches!(self, Self::Auto | Self::Embedded)
    }

    /// Its spelling in `cwasi.mode`.
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
