//! The end of a container's init: what is withdrawn, reported and cleaned up; and `Wait`.

use std::sync::Arc;
use std::time::Duration;

use containerd_shim::api::{WaitRequest, WaitResponse};
use containerd_shim::protos::events::task::{TaskExit, TaskOOM};
use tokio::sync::oneshot;

use super::container::{Container, Status};
use super::error::TaskError;
use super::stdio::copying::drain;
use super::table::Tasks;
use crate::oom::OomKills;
use crate::publisher::timestamp;
use crate::reaper::Exit;
use crate::rootfs;
use crate::{cgroups, cleanup};

/// Events for kills that were seen at once.
const OOM_EVENTS_MAX: u64 = 100;
/// Longest wait for processes beside an init that has ended.
const EXECS_END_MAX: Duration = Duration::from_secs(10);

impl Tasks {
    /// Reports when the container's init has ended; one per container.
    pub async fn watch(&self, container: Arc<Container>, exit: oneshot::Receiver<Exit>) {
        let unseen = |_| Exit::unseen();
        let mut kills = OomKills::watch(&container.record.cgroups);
        tokio::pin!(exit);
        let exit = loop {
            tokio::select! {
                exit = &mut exit => break exit.unwrap_or_else(unseen),
                new = kills.next() => self.report_oom(&container, &kills, new),
            }
        };
        // At once: systemd removes the counter of an empty scope.
        let new = kills.since();
        let ran = container.ran();
        // A start under way publishes its event first.
        let _verbs = container.verbs.lock().await;
        self.after_end(&container).await;
        // With init the kernel ended them, or what came after init did; their ends are published first.
        container.execs.wait(EXECS_END_MAX).await;
        let logs = container.relay().take_logs();
        drain(logs).await;
        self.parts.broker.metrics().write_now().await;
        self.parts.broker.spans().write_now().await;
        let new = new + kills.since();
        self.report_oom(&container, &kills, new);
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
        // Last: a client that waits for it may delete the task at once.
        container.status.send_replace(Status::Stopped(exit));
        self.unmount_ahead(&container).await;
    }

    /// Reports `new` processes that were killed for want of memory: an event for each, and a line.
    fn report_oom(&self, container: &Container, kills: &OomKills, new: u64) {
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

    /// Unmounts the root file system while containerd handles the end; a delete then finds less to do.
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
        if let Some(action) = container.action() {
            action.end();
        }
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
}
