//! `Delete`: removes a task that has ended, or was never started.

use std::time::Duration;

use containerd_shim::api::{DeleteRequest, DeleteResponse};
use containerd_shim::protos::events::task::TaskDelete;

use super::blocking::blocking;
use super::container::{Container, Status};
use super::error::TaskError;
use super::table::Tasks;
use crate::cleanup;
use crate::publisher::timestamp;
use crate::reaper::Exit;
use cwasi_wire::control::Verb;

/// Longest time a killed init may take to end.
const END_MAX: Duration = Duration::from_secs(30);

impl Tasks {
    /// Removes a task that has ended, or one that was never started. One that is being created ends as not found, or is
    /// removed when it was finished in that moment: containerd deletes a task whose creation it does not wait for any
    /// more.
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
            && let Err(error) = self.parts.run_verb(&container.key, Verb::Delete, &[]).await
        {
            tracing::warn!(container = container.id, %error, "cleaning up without the builder");
        }
        let (state, record) = (self.parts.state.clone(), container.record.clone());
        blocking(&container.id, move || {
            cleanup::remove(&state, &record);
            Ok(())
        })
        .await?;
        let relay = std::mem::take(&mut *container.relay());
        relay.finish().await;
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
}
