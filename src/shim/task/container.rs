//! One container: what the daemon knows about it between create and delete.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use containerd_shim::api::Status as ApiStatus;
use nix::fcntl::OFlag;
use tokio::sync::watch;

use super::action::Action;
use super::error::TaskError;
use super::exec::Execs;
use super::stdio::{Stdio, StdioRelay};
use crate::reaper::Exit;
use cwasi_coordinator::registry::Record;
use cwasi_host::broker::Readiness;
use cwasi_host::http::port::ServedPort;
use cwasi_host::metrics::starts::StartStages;
use cwasi_host::state::ContainerRecord;
use cwasi_sys::pidfd::PidFd;

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Built, its workload not started.
    Created,
    Running,
    Paused,
    /// Its init has ended.
    Stopped(Exit),
}

impl Status {
    /// As users say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped(_) => "stopped",
        }
    }

    /// As containerd says it.
    #[must_use]
    pub const fn api(self) -> ApiStatus {
        match self {
            Self::Created => ApiStatus::CREATED,
            Self::Running => ApiStatus::RUNNING,
            Self::Paused => ApiStatus::PAUSED,
            Self::Stopped(_) => ApiStatus::STOPPED,
        }
    }
}

/// The function that a container runs.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    /// What its sandbox said about its start.
    pub readiness: watch::Receiver<Readiness>,
    /// Registry record of a secondary, added when it is ready.
    pub record: Option<Record>,
    /// `None` when it does not wait for its code.
    pub action: Option<Action>,
}

#[derive(Debug)]
pub struct Container {
    pub id: String,
    pub key: String,
    pub bundle: PathBuf,
    /// Its streams, as containerd named them.
    pub stdio: Stdio,
    /// Its init has a terminal.
    pub terminal: bool,
    pub pid: i32,
    /// Init process; `None` when it ended before it could be opened.
    pub pidfd: Option<PidFd>,
    /// What is on disk about it.
    pub record: ContainerRecord,
    /// True when its processes do not end with its init: no pid namespace of its own.
    pub shares_pids: bool,
    /// True when hooks run at its start.
    pub has_start_hooks: bool,
    /// True when only libcontainer knows what its end takes.
    pub has_aftermath: bool,
    /// `None` for native containers.
    pub function: Option<Function>,
    pub execs: Execs,
    /// containerd's log for this container.
    pub log: BundleLog,
    pub status: watch::Sender<Status>,
    /// One verb that changes the state at a time; its end is published after a start under way.
    pub verbs: tokio::sync::Mutex<()>,
    relay: Mutex<StdioRelay>,
    /// Its port of `cwasi.http`, while it is served.
    port: Mutex<Option<ServedPort>>,
    /// The stages of its start up to here.
    pub stages: StartStages,
    /// When its workload began to run.
    ready: OnceLock<Instant>,
}

/// What `Container::new` needs beside the record.
#[derive(Debug)]
pub struct Built {
    /// The stages of its start so far.
    pub stages: StartStages,
    pub key: String,
    pub stdio: Stdio,
    /// Its init has a terminal.
    pub terminal: bool,
    /// containerd's log for this container.
    pub log: BundleLog,
    /// The daemon's part of them.
    pub relay: StdioRelay,
    /// `None` for native containers.
    pub function: Option<Function>,
    /// No pid namespace of its own.
    pub shares_pids: bool,
    /// Hooks run at its start.
    pub has_start_hooks: bool,
    /// Hooks run at its end, or something beside cgroups and files has to be removed.
    pub has_aftermath: bool,
}

impl Container {
    /// A container whose init exists.
    #[must_use]
    pub fn new(built: Built, record: ContainerRecord) -> Self {
        Self {
            id: record.id.clone(),
            key: built.key,
            bundle: record.bundle.clone(),
            stdio: built.stdio,
            terminal: built.terminal,
            pid: record.pid,
            pidfd: PidFd::open(record.pid).ok(),
            shares_pids: built.shares_pids,
            has_start_hooks: built.has_start_hooks,
            has_aftermath: built.has_aftermath,
            function: built.function,
            execs: Execs::default(),
            log: built.log,
            status: watch::channel(Status::Created).0,
            verbs: tokio::sync::Mutex::new(()),
            relay: Mutex::new(built.relay),
            port: Mutex::new(None),
            stages: built.stages,
            ready: OnceLock::new(),
            record,
        }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn status(&self) -> Status {
        *self.status.borrow()
    }

    /// The daemon's part of its streams.
    pub fn relay(&self) -> MutexGuard<'_, StdioRelay> {
        // A panic elsewhere can at most have closed one.
        self.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is for a function that waits for its code.
    #[must_use]
    pub fn action(&self) -> Option<&Action> {
        self.function.as_ref()?.action.as_ref()
    }

    /// Keeps a port served, or ends it.
    pub fn set_port(&self, port: Option<ServedPort>) {
        // A single store: a panic elsewhere leaves it consistent.
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = port;
    }

    /// Records that its workload runs.
    pub fn set_ready(&self) {
        // There is one start.
        let _once = self.ready.set(Instant::now());
    }

    /// How long its workload has run; `None` before it did.
    #[must_use]
    pub fn ran(&self) -> Option<Duration> {
        self.ready.get().map(Instant::elapsed)
    }

    /// Its pid as containerd's messages carry it.
    #[must_use]
    pub fn api_pid(&self) -> u32 {
        u32::try_from(self.pid).unwrap_or(0)
    }

    /// Waits until its init has ended.
    pub async fn exit(&self) -> Exit {
        let mut status = self.status.subscribe();
        let stopped = status.wait_for(|status| matches!(status, Status::Stopped(_))).await;
        match stopped.map(|status| *status) {
            Ok(Status::Stopped(exit)) => exit,
            // The sender lives in `self`, and the condition was met.
            _ => Exit::unseen(),
        }
    }

    /// Sends a signal to its init.
    ///
    /// # Errors
    /// [`TaskError::Ended`] when it has ended.
    pub fn signal(&self, signal: i32) -> Result<(), TaskError> {
        let ended = || TaskError::Ended { id: self.id.clone() };
        if matches!(self.status(), Status::Stopped(_)) {
            return Err(ended());
        }
        let pidfd = self.pidfd.as_ref().ok_or_else(ended)?;
        pidfd.signal(signal).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => ended(),
            Some(libc::EINVAL) => {
                TaskError::Invalid { id: self.id.clone(), problem: format!("no signal {signal}") }
            }
            _ => TaskError::System { id: self.id.clone(), operation: "kill", source },
        })
    }

    /// The error for a verb that this state does not allow.
    #[must_use]
    pub fn refuse(&self, verb: &'static str) -> TaskError {
        TaskError::State { id: self.id.clone(), state: self.status().name(), verb }
    }
}

/// containerd's log fifo in a bundle: short lines that an operator finds in containerd's own log.
#[derive(Debug)]
pub struct BundleLog {
    fifo: Option<File>,
}

impl BundleLog {
    /// Opens it; without a reader there is none.
    #[must_use]
    pub fn open(bundle: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        Self { fifo: options.open(bundle.join("log")).ok() }
    }

    /// Writes one line; a reader that is slow or gone misses it.
    pub fn line(&self, level: &str, container: &str, message: &str) {
        if let Some(mut fifo) = self.fifo.as_ref() {
            let line =
                format!("level={level} runtime=cwasi container={container} msg={message:?}\n");
            let _ = fifo.write_all(line.as_bytes());
        }
    }
}
