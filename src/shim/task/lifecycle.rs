//! The verbs that change a task after create: start, kill, delete; and its end.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_shim::api::{
    CloseIORequest, DeleteRequest, DeleteResponse, Empty, KillRequest, StartRequest, StartResponse,
    WaitRequest, WaitResponse,
};
use containerd_shim::protos::events::task::{TaskDelete, TaskExit, TaskOOM, TaskStart};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::sync::oneshot;

use super::blocking::blocking;
use super::container::{Container, Function, Status};
use super::error::TaskError;
use super::stdio::copying::drain;
use super::table::Tasks;
use crate::oom::OomKills;
use crate::publisher::timestamp;
use crate::reaper::Exit;
use crate::rootfs;
use crate::zygote::ZygoteError;
use crate::{cgroups, cleanup};
use cwasi_coordinator::registry::Record;
use cwasi_host::broker::Readiness;
use cwasi_host::caller::Tracer;
use cwasi_host::http::port::ServedPort;
use cwasi_host::metrics::starts::{StartStages, micros};
use cwasi_wire::control::{START_SOCKET, START_WORD, SandboxKind, Verb, VerbRequest};

/// Longest time a function may take from start to ready: its workers are forked and its instances made.
const READY_MAX: Duration = Duration::from_secs(60);
/// Longest time a killed init may take to end.
const END_MAX: Duration = Duration::from_secs(30);
/// Events for kills that were seen at once.
const OOM_EVENTS_MAX: u64 = 100;
/// Highest signal number.
const SIGNAL_MAX: u32 = 64;
/// Longest wait for processes beside an init that has ended.
const EXECS_END_MAX: Duration = Duration::from_secs(10);

impl Tasks {
    /// Has a builder do one operation on a container.
    pub(super) async fn verb(&self, container: &Container, verb: Verb) -> Result<(), ZygoteError> {
        let request =
            VerbRequest { container: container.key.clone(), root: self.parts.group.oci(), verb };
        self.parts.zygote.run(&request, &[]).await.map(drop)
    }

    /// Lets the workload run; a secondary can be called when this returns.
    ///
    /// # Errors
    /// When it is not created or does not come up.
    pub async fn start(
        self: &Arc<Self>,
        request: &StartRequest,
    ) -> Result<StartResponse, TaskError> {
        if !request.exec_id.is_empty() {
            return self.start_exec(&request.id, &request.exec_id).await;
        }
        let container = self.find(&request.id)?;
        let _verbs = container.verbs.lock().await;
        if container.status() != Status::Created {
            return Err(container.refuse("start"));
        }
        let began = Instant::now();
        if let Err(error) = self.run_workload(&container).await {
            tracing::error!(container = container.id, %error, "start failed");
            container.log.line("error", &container.id, &error.to_string());
            // Nobody waits for a workload that did not come up; it may have ended already.
            let _ = container.signal(libc::SIGKILL);
            // Who is told of the failure looks into its log.
            let logs = container.kept().take_logs();
            drain(logs).await;
            return Err(error);
        }
        container.set_ready();
        let ready_us = Some(micros(began.elapsed()));
        let stages = StartStages { ready_us, ..container.stages.clone() };
        self.parts.broker.metrics().set_start(stages);
        container.status.send_replace(Status::Running);
        let mut event = TaskStart::new();
        event.set_container_id(container.id.clone());
        event.set_pid(container.api_pid());
        self.parts.publisher.publish(event);
        tracing::info!(container = container.id, pid = container.pid, "started");
        let mut response = StartResponse::new();
        response.set_pid(container.api_pid());
        Ok(response)
    }

    async fn run_workload(&self, container: &Container) -> Result<(), TaskError> {
        if container.has_start_hooks {
            self.verb(container, Verb::Start).await?;
        } else {
            // A connection to a socket that listens, and a word that fits into it: nothing here waits.
            start_word(&container.id, &self.parts.group.oci().join(&container.key))?;
        }
        let Some(function) = &container.function else { return Ok(()) };
        wait_ready(&container.id, function).await?;
        if let Some(record) = function.record.clone() {
            let registry = self.parts.broker.registry().clone();
            let local = record.clone();
            blocking(&container.id, move || Ok(registry.add(&local).map(drop)?)).await?;
            self.serve_port(container, &record).await?;
            if let Some(network) = self.parts.broker.network() {
                network.serve(record).await;
            }
            tracing::info!(container = container.id, function = function.name, "registered");
        }
        Ok(())
    }

    /// Serves the port of `cwasi.http`, if the function has one.
    async fn serve_port(&self, container: &Container, record: &Record) -> Result<(), TaskError> {
        let Some(port) = record.http_port else { return Ok(()) };
        let resolver = self.parts.broker.resolver().clone();
        let pid = match self.parts.sandbox {
            SandboxKind::Container => Some(container.pid),
            SandboxKind::Process => None,
        };
        let spans = self.parts.broker.spans().clone();
        let tracer = Tracer::new(spans, &self.parts.traces);
        let metrics = self.parts.broker.metrics().clone();
        let served = ServedPort::start(pid, port, record, resolver, tracer, metrics).await;
        let served = served.map_err(|source| TaskError::HttpPort {
            id: container.id.clone(),
            port,
            source,
        })?;
        container.set_port(Some(served));
        Ok(())
    }

    /// Tells everybody when the container's init has ended; one per container.
    pub async fn watch(&self, container: Arc<Container>, exit: oneshot::Receiver<Exit>) {
        let unseen = |_| Exit::unseen();
        let mut kills = OomKills::watch(&container.record.cgroups);
        tokio::pin!(exit);
        let exit = loop {
            tokio::select! {
                exit = &mut exit => break exit.unwrap_or_else(unseen),
                new = kills.next() => self.tell_oom(&container, &kills, new),
            }
        };
        // At once: systemd removes the counter of an empty scope.
        let new = kills.since();
        let ran = container.ran();
        // A start under way tells its event first.
        let _verbs = container.verbs.lock().await;
        self.after_end(&container).await;
        // With init the kernel ended them, or what came after init did; their ends are told first.
        container.execs.wait(EXECS_END_MAX).await;
        let logs = container.kept().take_logs();
        drain(logs).await;
        self.parts.broker.metrics().write_now().await;
        self.parts.broker.spans().write_now().await;
        let new = new + kills.since();
        self.tell_oom(&container, &kills, new);
        let mut event = TaskExit::new();
        event.set_container_id(container.id.clone());
        event.set_id(container.id.clone());
        event.set_pid(container.api_pid());
        event.set_exit_status(exit.api_status());
        event.set_exited_at(timestamp(exit.at));
        self.parts.publisher.publish(event);
        self.parts.broker.metrics().end_run(&container.id, ran, exit.api_status());
        let oom_kills = kills.total();
        tracing::info!(container = container.id, status = exit.status, oom_kills, "ended");
        // The cgroups are removed with the container.
        drop(kills);
        // Last: whoever waits for it may delete the task at once.
        container.status.send_replace(Status::Stopped(exit));
        self.unmount_ahead(&container).await;
    }

    /// Tells of `new` processes that were killed for want of memory: an event for each, and a line.
    fn tell_oom(&self, container: &Container, kills: &OomKills, new: u64) {
        if new == 0 {
            return;
        }
        for _ in 0..new.min(OOM_EVENTS_MAX) {
            let mut event = TaskOOM::new();
            event.set_container_id(container.id.clone());
            self.parts.publisher.publish(event);
        }
        let total = kills.total();
        tracing::warn!(container = container.id, new, total, "killed for want of memory");
        let processes = if new == 1 { "process" } else { "processes" };
        let line = format!(
            "{new} {processes} killed for want of memory, {total} so far: raise the container's memory limit"
        );
        container.log.line("warning", &container.id, &line);
    }

    /// Unmounts what nobody needs any more while containerd hears of the end; a delete waits for it and finds less to do.
    async fn unmount_ahead(&self, container: &Container) {
        if container.record.rootfs_mounted && !container.has_aftermath {
            let rootfs = container.record.rootfs.clone();
            // What stays mounted is tried again by the delete.
            drop(tokio::task::spawn_blocking(move || rootfs::unmount(&rootfs)).await);
        }
    }

    /// Withdraws the function and ends what init left behind.
    async fn after_end(&self, container: &Container) {
        container.set_port(None);
        let (record, shares_pids) = (container.record.clone(), container.shares_pids);
        let registry = self.parts.broker.registry().clone();
        let id = container.id.clone();
        let function = container.function.as_ref().and_then(|function| function.record.as_ref());
        if let (Some(network), Some(record)) = (self.parts.broker.network(), function) {
            network.withdraw(record).await;
        }
        let ending = tokio::task::spawn_blocking(move || {
            cleanup::withdraw(&registry, &record);
            if shares_pids && !cgroups::kill_all(&record.cgroups) {
                tracing::error!(container = id, "some of its processes cannot be killed");
            }
        });
        drop(ending.await);
    }

    /// Waits for the end of a task.
    ///
    /// # Errors
    /// When there is no such task.
    pub async fn wait(&self, request: &WaitRequest) -> Result<WaitResponse, TaskError> {
        let exit = if request.exec_id.is_empty() {
            self.find(&request.id)?.exit().await
        } else {
            self.find_exec(&request.id, &request.exec_id)?.1.exit().await
        };
        let mut response = WaitResponse::new();
        response.set_exit_status(exit.api_status());
        response.set_exited_at(timestamp(exit.at));
        Ok(response)
    }

    /// Sends a signal to the task's init, or to all its processes.
    ///
    /// # Errors
    /// [`TaskError::Ended`] when it has ended.
    pub async fn kill(&self, request: &KillRequest) -> Result<Empty, TaskError> {
        let deadly = [libc::SIGTERM, libc::SIGKILL].map(libc::c_int::unsigned_abs);
        let creating = request.exec_id.is_empty() && deadly.contains(&request.signal);
        if creating && self.cancel_creation(&request.id).await {
            tracing::info!(container = request.id, "killed while it was being created");
            if matches!(self.find(&request.id), Err(TaskError::NotFound { .. })) {
                return Ok(Empty::new());
            }
        }
        let signal = i32::try_from(request.signal).ok();
        let Some(signal) = signal.filter(|_| (1..=SIGNAL_MAX).contains(&request.signal)) else {
            let problem = format!("no signal {}", request.signal);
            return Err(TaskError::Invalid { id: request.id.clone(), problem });
        };
        if !request.exec_id.is_empty() {
            self.find_exec(&request.id, &request.exec_id)?.1.signal(signal)?;
            return Ok(Empty::new());
        }
        let container = self.find(&request.id)?;
        container.signal(signal)?;
        let frozen = container.status() == Status::Paused && signal == libc::SIGKILL;
        if request.all || frozen {
            let (directories, own, all) =
                (container.record.cgroups.clone(), container.pid, request.all);
            let killing = move || {
                let others = cgroups::processes(&directories).into_iter();
                for pid in others.filter(|pid| all && *pid != own) {
                    // A process that ended since is not found, and new ones get
                    // other numbers long before this one comes round again.
                    let _ = nix::sys::signal::Signal::try_from(signal)
                        .map(|signal| kill(Pid::from_raw(pid), signal));
                }
                if frozen {
                    cgroups::thaw(&directories);
                }
                Ok(())
            };
            blocking(&container.id, killing).await?;
        }
        Ok(Empty::new())
    }

    /// Removes a task that has ended, or one that was never started. One that is being created ends as not found, or is
    /// removed when it was finished in that moment: containerd deletes a task whose creation it does not wait for any more.
    ///
    /// # Errors
    /// When it still runs.
    pub async fn delete(&self, request: &DeleteRequest) -> Result<DeleteResponse, TaskError> {
        if !request.exec_id.is_empty() {
            return self.delete_exec(&request.id, &request.exec_id).await;
        }
        if self.cancel_creation(&request.id).await {
            tracing::info!(container = request.id, "deleted while it was being created");
        }
        let container = self.find(&request.id)?;
        let exit = self.end_for_delete(&container).await?;
        let _verbs = container.verbs.lock().await;
        // Two deletes at once: the second finds nothing left.
        self.find(&container.id)?;
        // A builder costs milliseconds, and there is nothing that it alone could do for most containers.
        if container.has_aftermath
            && let Err(error) = self.verb(&container, Verb::Delete).await
        {
            tracing::warn!(container = container.id, %error, "cleaning up without the builder");
        }
        let (state, record) = (self.parts.state.clone(), container.record.clone());
        blocking(&container.id, move || {
            cleanup::remove(&state, &record);
            Ok(())
        })
        .await?;
        let copying = container.kept().take_copying();
        drain(copying).await;
        let logger = container.kept().close();
        if let Some(logger) = logger {
            logger.end().await;
        }
        container.execs.close();
        self.parts.broker.metrics().remove_start(&container.id);
        self.forget(&container.id);
        let mut event = TaskDelete::new();
        event.set_container_id(container.id.clone());
        event.set_pid(container.api_pid());
        event.set_exit_status(exit.api_status());
        event.set_exited_at(timestamp(exit.at));
        self.parts.publisher.publish(event);
        let mut response = DeleteResponse::new();
        response.set_pid(container.api_pid());
        response.set_exit_status(exit.api_status());
        response.set_exited_at(timestamp(exit.at));
        Ok(response)
    }

    async fn end_for_delete(&self, container: &Container) -> Result<Exit, TaskError> {
        match container.status() {
            Status::Stopped(exit) => Ok(exit),
            Status::Running | Status::Paused => Err(container.refuse("delete")),
            Status::Created => {
                match container.signal(libc::SIGKILL) {
                    Ok(()) | Err(TaskError::Ended { .. }) => {}
                    Err(error) => return Err(error),
                }
                let ended = tokio::time::timeout(END_MAX, container.exit()).await;
                ended.map_err(|_| container.refuse("delete"))
            }
        }
    }

    /// Ends the input of the task, or of another process in it.
    ///
    /// # Errors
    /// When there is no such task or process.
    pub fn close_io(&self, request: &CloseIORequest) -> Result<Empty, TaskError> {
        if !request.stdin {
            return Ok(Empty::new());
        }
        if request.exec_id.is_empty() {
            self.find(&request.id)?.kept().close_input();
        } else {
            self.find_exec(&request.id, &request.exec_id)?.1.kept().close_input();
        }
        Ok(Empty::new())
    }
}

/// Tells an init that waits in libcontainer to go on, as libcontainer's own `start` does. Its socket is in `state`, whose path
/// may be too long for one.
fn start_word(id: &str, state: &Path) -> Result<(), TaskError> {
    let failed = |source: io::Error| TaskError::System {
        id: id.to_owned(),
        operation: "telling init to start",
        source,
    };
    let directory = File::open(state).map_err(failed)?;
    let socket = format!("/proc/self/fd/{}/{START_SOCKET}", directory.as_raw_fd());
    let mut init = UnixStream::connect(socket).map_err(failed)?;
    init.write_all(START_WORD).map_err(failed)
}

/// Waits for the sandbox's word about its start.
async fn wait_ready(id: &str, function: &Function) -> Result<(), TaskError> {
    let mut readiness = function.readiness.clone();
    let told = readiness.wait_for(|readiness| *readiness != Readiness::Waiting);
    let failed = |reason: String| Err(TaskError::NotStarted { id: id.to_owned(), reason });
    match tokio::time::timeout(READY_MAX, told).await.map(|told| told.map(|told| told.clone())) {
        Ok(Ok(Readiness::Ready)) => Ok(()),
        Ok(Ok(Readiness::Failed(message))) => failed(message),
        Ok(_) => failed(format!("the sandbox of {} ended before it was ready", function.name)),
        Err(_) => failed(format!(
            "{} was not ready within {} s: its module's `_initialize` or start function has not returned, or its workers \
             cannot be started; its stderr may say why",
            function.name,
            READY_MAX.as_secs()
        )),
    }
}
