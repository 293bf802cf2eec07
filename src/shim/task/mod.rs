//! containerd's Task service, version 2, for every container of the group.
//!
//! Runs in the daemon. Every call is answered deliberately. A call whose connection goes away is finished
//! all the same: its future would be dropped in the middle, so what changes a task runs on a task of its own.
//!
//! - [`table`]: which tasks there are; [`container`]: one of them; [`exec`]: its other processes.
//! - `create`, `start`, `pause`, `kill`, `exit`, `delete`, `inspect`: the verbs; `spec`, `metrics`: what some of them
//!   read; [`process`]: those on other processes than init; `blocking`: their work on threads of its own.
//! - [`provision`]: asks the coordinator what to run; [`progress`]: what the user reads meanwhile;
//!   [`rootfs`](super::rootfs): its root file system; [`stdio`]: its standard streams.
//! - [`action`]: a function that waits for its code; `delivery`: its code comes.
//! - [`error`]: the only mapping from our errors to ttrpc statuses.

pub mod action;
mod blocking;
pub mod container;
mod create;
mod delete;
mod delivery;
pub mod error;
pub mod exec;
mod exit;
mod inspect;
mod kill;
mod metrics;
mod pause;
pub mod process;
pub mod progress;
pub mod provision;
mod spec;
mod start;
pub mod stdio;
pub mod table;

use std::sync::Arc;

use async_trait::async_trait;
use containerd_shim::TtrpcContext;
use containerd_shim::TtrpcResult;
use containerd_shim::api::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
    CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest,
    PauseRequest, PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, ShutdownRequest,
    StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest, StatsResponse,
    UpdateTaskRequest, WaitRequest, WaitResponse,
};
use containerd_shim::protos::shim_async::Task;

use error::{TaskError, answer};
use table::Tasks;

/// The service; one per daemon.
#[derive(Clone)]
pub struct TaskService {
    tasks: Arc<Tasks>,
}

impl TaskService {
    /// The service over `tasks`.
    #[must_use]
    pub fn new(tasks: Arc<Tasks>) -> Self {
        Self { tasks }
    }

    /// Runs `verb` to its end, whether or not the caller is still there.
    async fn finish<T, F, V>(&self, verb: V) -> TtrpcResult<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, TaskError>> + Send + 'static,
        V: FnOnce(Arc<Tasks>) -> F,
    {
        let running = tokio::spawn(verb(Arc::clone(&self.tasks)));
        answer(running.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a request's task died");
            Err(TaskError::System {
                id: String::new(),
                operation: "the request",
                source: error.into(),
            })
        }))
    }
}

#[async_trait]
impl Task for TaskService {
    async fn create(
        &self,
        _: &TtrpcContext,
        request: CreateTaskRequest,
    ) -> TtrpcResult<CreateTaskResponse> {
        self.finish(|tasks| async move { tasks.create(request).await }).await
    }

    async fn start(&self, _: &TtrpcContext, request: StartRequest) -> TtrpcResult<StartResponse> {
        self.finish(|tasks| async move { tasks.start(&request).await }).await
    }

    async fn state(&self, _: &TtrpcContext, request: StateRequest) -> TtrpcResult<StateResponse> {
        answer(self.tasks.state(&request))
    }

    async fn wait(&self, _: &TtrpcContext, request: WaitRequest) -> TtrpcResult<WaitResponse> {
        answer(self.tasks.wait(&request).await)
    }

    async fn kill(&self, _: &TtrpcContext, request: KillRequest) -> TtrpcResult<Empty> {
        self.finish(|tasks| async move { tasks.kill(&request).await }).await
    }

    async fn delete(
        &self,
        _: &TtrpcContext,
        request: DeleteRequest,
    ) -> TtrpcResult<DeleteResponse> {
        self.finish(|tasks| async move { tasks.delete(&request).await }).await
    }

    async fn pids(&self, _: &TtrpcContext, request: PidsRequest) -> TtrpcResult<PidsResponse> {
        answer(self.tasks.pids(&request).await)
    }

    async fn stats(&self, _: &TtrpcContext, request: StatsRequest) -> TtrpcResult<StatsResponse> {
        answer(self.tasks.stats(&request).await)
    }

    async fn pause(&self, _: &TtrpcContext, request: PauseRequest) -> TtrpcResult<Empty> {
        self.finish(|tasks| async move { tasks.pause(&request.id).await }).await
    }

    async fn resume(&self, _: &TtrpcContext, request: ResumeRequest) -> TtrpcResult<Empty> {
        self.finish(|tasks| async move { tasks.resume(&request.id).await }).await
    }

    async fn update(&self, _: &TtrpcContext, request: UpdateTaskRequest) -> TtrpcResult<Empty> {
        self.finish(|tasks| async move { tasks.update(&request).await }).await
    }

    async fn close_io(&self, _: &TtrpcContext, request: CloseIORequest) -> TtrpcResult<Empty> {
        answer(self.tasks.close_io(&request))
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        request: ConnectRequest,
    ) -> TtrpcResult<ConnectResponse> {
        answer(self.tasks.connect(&request))
    }

    async fn shutdown(&self, _: &TtrpcContext, _: ShutdownRequest) -> TtrpcResult<Empty> {
        // The daemon serves a group: it ends when the last task is gone, whichever client asks.
        self.tasks.ask_to_end();
        Ok(Empty::new())
    }

    async fn exec(&self, _: &TtrpcContext, request: ExecProcessRequest) -> TtrpcResult<Empty> {
        answer(self.tasks.exec(&request))
    }

    async fn resize_pty(&self, _: &TtrpcContext, request: ResizePtyRequest) -> TtrpcResult<Empty> {
        answer(self.tasks.resize_pty(&request))
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        request: CheckpointTaskRequest,
    ) -> TtrpcResult<Empty> {
        let id = request.id;
        answer(self.tasks.find(&id).and(Err(TaskError::NoCheckpoint { id })))
    }
}
