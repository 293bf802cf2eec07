//! A process beside a native container's init (`kubectl exec`, `ctr task exec`): from `Exec` to `Delete`.
//!
//! It is a child of the daemon, as init is, in the container's namespaces and cgroups. Its streams are opened when it
//! is started, not before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use containerd_shim::api::Status as ApiStatus;
use tokio::sync::watch;

use super::error::TaskError;
use super::stdio::{Stdio, StdioRelay};
use crate::reaper::Exit;
use cwasi_sys::pidfd::PidFd;

/// Processes that one container may have beside init, ended ones included until they are deleted.
const PROCESSES_MAX: usize = 4096;
/// Exit status of a process that was deleted before it was started.
const STATUS_NEVER_STARTED: i32 = 255;

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Described, not started.
    Created,
    Running(i32),
    /// Ended; its process id, 0 when it was never started.
    Stopped(i32, Exit),
}

impl Status {
    /// As users say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running(_) => "running",
            Self::Stopped(..) => "stopped",
        }
    }

    /// As containerd says it.
    #[must_use]
    pub const fn api(self) -> ApiStatus {
        match self {
            Self::Created => ApiStatus::CREATED,
            Self::Running(_) => ApiStatus::RUNNING,
            Self::Stopped(..) => ApiStatus::STOPPED,
        }
    }

    /// Its process id as containerd's messages carry it; 0 before its start.
    #[must_use]
    pub fn api_pid(self) -> u32 {
        match self {
            Self::Created => 0,
            Self::Running(pid) | Self::Stopped(pid, _) => u32::try_from(pid).unwrap_or(0),
        }
    }
}

#[derive(Debug)]
pub struct Exec {
    /// containerd's id of the task.
    pub container: String,
    /// containerd's id of the process, unique within the task.
    pub id: String,
    /// OCI `Process` as JSON.
    pub process: String,
    /// It gets a terminal.
    pub terminal: bool,
    /// Its streams, as containerd named them.
    pub stdio: Stdio,
    /// One verb that changes the state at a time.
    pub verbs: tokio::sync::Mutex<()>,
    status: watch::Sender<Status>,
    pidfd: OnceLock<PidFd>,
    relay: Mutex<StdioRelay>,
}

impl Exec {
    /// A process that is not started.
    #[must_use]
    pub fn new(container: &str, id: &str, process: String, terminal: bool, stdio: Stdio) -> Self {
        Self {
            container: container.to_owned(),
            id: id.to_owned(),
            process,
            terminal,
            stdio,
            verbs: tokio::sync::Mutex::new(()),
            status: watch::channel(Status::Created).0,
            pidfd: OnceLock::new(),
            relay: Mutex::default(),
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

    /// It runs as `pid`.
    pub fn started(&self, pid: i32, pidfd: Option<PidFd>) {
        if let Some(pidfd) = pidfd {
            // Started once, so it was not set before.
            let _set = self.pidfd.set(pidfd);
        }
        self.status.send_replace(Status::Running(pid));
    }

    pub fn ended(&self, exit: Exit) {
        self.status.send_modify(|status| {
            if let Status::Running(pid) = *status {
                *status = Status::Stopped(pid, exit);
            }
        });
    }

    /// Records that it was deleted before its start: waits for its end return.
    pub fn given_up(&self) {
        let exit = Exit { status: STATUS_NEVER_STARTED, at: SystemTime::now() };
        self.status.send_replace(Status::Stopped(0, exit));
    }

    /// Waits until it has ended.
    pub async fn exit(&self) -> Exit {
        let mut status = self.status.subscribe();
        let stopped = status.wait_for(|status| matches!(status, Status::Stopped(..))).await;
        match stopped.map(|status| *status) {
            Ok(Status::Stopped(_, exit)) => exit,
            // The sender lives in `self`, and the condition was met.
            _ => Exit { status: STATUS_NEVER_STARTED, at: SystemTime::now() },
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`TaskError::Ended`] when it has ended, [`TaskError::State`] when it was not started.
    pub fn signal(&self, signal: i32) -> Result<(), TaskError> {
        let ended = || TaskError::Ended { id: self.name() };
        match self.status() {
            Status::Created => return Err(self.refuse("kill")),
            Status::Stopped(..) => return Err(ended()),
            Status::Running(_) => {}
        }
        let pidfd = self.pidfd.get().ok_or_else(ended)?;
        pidfd.signal(signal).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => ended(),
            _ => TaskError::System { id: self.name(), operation: "kill", source },
        })
    }

    /// The error for a verb that this state does not allow.
    #[must_use]
    pub fn refuse(&self, verb: &'static str) -> TaskError {
        TaskError::State { id: self.name(), state: self.status().name(), verb }
    }

    /// For messages: the task's id and its own.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} (process {})", self.container, self.id)
    }
}

/// The processes of one container.
#[derive(Debug, Default)]
pub struct Execs(Mutex<HashMap<String, Arc<Exec>>>);

impl Execs {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Arc<Exec>>> {
        // Every change is one insertion or removal, so a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process.
    ///
    /// # Errors
    /// When its id is taken, or there are too many.
    pub fn add(&self, exec: Exec) -> Result<(), TaskError> {
        let mut table = self.table();
        if table.contains_key(&exec.id) {
            return Err(TaskError::Exists { id: exec.name() });
        }
        if table.len() >= PROCESSES_MAX {
            let problem = format!("{PROCESSES_MAX} processes are not deleted; delete some first");
            return Err(TaskError::Invalid { id: exec.container, problem });
        }
        table.insert(exec.id.clone(), Arc::new(exec));
        Ok(())
    }

    /// The process with this id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Arc<Exec>> {
        self.table().get(id).cloned()
    }

    /// The ids of those that run, by pid.
    #[must_use]
    pub fn running(&self) -> HashMap<u32, String> {
        let table = self.table();
        let running = table.values().filter(|exec| matches!(exec.status(), Status::Running(_)));
        running.map(|exec| (exec.status().api_pid(), exec.id.clone())).collect()
    }

    /// Forgets a deleted process.
    pub fn forget(&self, id: &str) {
        self.table().remove(id);
    }

    /// Waits for the end of all that run, at most `limit`.
    pub async fn wait(&self, limit: Duration) {
        let all: Vec<_> = self.table().values().cloned().collect();
        let running = all.into_iter().filter(|exec| matches!(exec.status(), Status::Running(_)));
        let ends = async {
            for exec in running {
                exec.exit().await;
            }
        };
        if tokio::time::timeout(limit, ends).await.is_err() {
            tracing::warn!("processes of a container outlive its init");
        }
    }

    /// Ends the waits for processes that were never started, and closes all streams.
    pub fn close(&self) {
        for (_, exec) in self.table().drain() {
            // A logging program is terminated.
            drop(exec.relay().close());
            if exec.status() == Status::Created {
                exec.given_up();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(id: &str) -> Exec {
        Exec::new("c", id, String::new(), false, Stdio::default())
    }

    #[test]
    fn an_id_is_taken_until_its_process_is_deleted() {
        let execs = Execs::default();
        execs.add(exec("e")).unwrap();
        let again = execs.add(exec("e"));
        assert!(matches!(again, Err(TaskError::Exists { .. })), "{again:?}");
        execs.forget("e");
        execs.add(exec("e")).unwrap();
    }

    #[test]
    fn there_is_a_bound() {
        let execs = Execs::default();
        for id in 0..PROCESSES_MAX {
            execs.add(exec(&id.to_string())).unwrap();
        }
        assert!(matches!(execs.add(exec("more")), Err(TaskError::Invalid { .. })));
    }

    #[tokio::test]
    async fn waits_return_at_an_end_or_a_deletion() {
        let (ran, never) = (exec("ran"), exec("never"));
        assert!(matches!(ran.signal(9), Err(TaskError::State { .. })), "not started");
        ran.started(7, None);
        let exit = Exit { status: 3, at: SystemTime::UNIX_EPOCH };
        ran.ended(exit);
        assert_eq!((ran.exit().await, ran.status().api_pid()), (exit, 7));
        assert!(matches!(ran.signal(9), Err(TaskError::Ended { .. })));
        never.given_up();
        assert_eq!(never.exit().await.status, STATUS_NEVER_STARTED);
    }
}
