//! The verbs that change how a task runs: pause, resume, update.

use containerd_shim::api::{Empty, UpdateTaskRequest};
use containerd_shim::protos::events::task::{TaskPaused, TaskResumed};

use super::container::Status;
use super::error::TaskError;
use super::table::Tasks;
use cwasi_wire::control::Verb;

impl Tasks {
    /// Freezes the task.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn pause(&self, id: &str) -> Result<Empty, TaskError> {
        let container = self.find(id)?;
        let _verbs = container.verbs.lock().await;
        if container.status() != Status::Running {
            return Err(container.refuse("pause"));
        }
        self.parts.run_verb(&container.key, Verb::Pause, &[]).await?;
        container.status.send_replace(Status::Paused);
        let mut event = TaskPaused::new();
        event.set_container_id(container.id.clone());
        self.parts.publisher.publish(event);
        Ok(Empty::new())
    }

    /// Thaws the task.
    ///
    /// # Errors
    /// When it is not frozen.
    pub async fn resume(&self, id: &str) -> Result<Empty, TaskError> {
        let container = self.find(id)?;
        let _verbs = container.verbs.lock().await;
        if container.status() != Status::Paused {
            return Err(container.refuse("resume"));
        }
        self.parts.run_verb(&container.key, Verb::Resume, &[]).await?;
        container.status.send_replace(Status::Running);
        let mut event = TaskResumed::new();
        event.set_container_id(container.id.clone());
        self.parts.publisher.publish(event);
        Ok(Empty::new())
    }

    /// Applies new limits.
    ///
    /// # Errors
    /// When they are no OCI resources or the kernel refuses them.
    pub async fn update(&self, request: &UpdateTaskRequest) -> Result<Empty, TaskError> {
        let container = self.find(&request.id)?;
        let invalid = |problem: String| TaskError::Invalid { id: request.id.clone(), problem };
        let resources = String::from_utf8(request.resources().value.clone())
            .map_err(|_| invalid("the new resources are no JSON text".to_owned()))?;
        serde_json::from_str::<oci_spec::runtime::LinuxResources>(&resources)
            .map_err(|error| invalid(format!("the new resources are no OCI resources: {error}")))?;
        let _verbs = container.verbs.lock().await;
        if matches!(container.status(), Status::Stopped(_)) {
            return Err(container.refuse("update"));
        }
        self.parts.run_verb(&container.key, Verb::Update { resources }, &[]).await?;
        Ok(Empty::new())
    }
}
