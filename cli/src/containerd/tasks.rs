//! Tasks: the processes of containers.

use std::collections::HashMap;
use std::time::Duration;

use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    CreateTaskRequest, DeleteTaskRequest, GetRequest, KillRequest, ListTasksRequest, StartRequest,
    WaitRequest,
};
use containerd_client::types::Mount;
use containerd_client::types::v1::{Process, Status as TaskStatus};

use super::{Containerd, ContainerdError, refused};

/// Longest time for a task to end after SIGTERM; init lets its requests end for 10 s.
const STOP_MAX: Duration = Duration::from_secs(12);
/// Longest wait for a killed function.
const KILL_MAX: Duration = Duration::from_secs(30);
const SIGTERM: u32 = 15;
const SIGKILL: u32 = 9;

#[derive(Clone, Debug)]
pub struct Task {
    pub pid: u32,
    /// `RUNNING`, `STOPPED`, …
    pub status: &'static str,
    /// Exit code of a stopped one.
    pub exit: u32,
}

impl Task {
    /// True while it runs, also while it is paused.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.status != "STOPPED"
    }

    /// True before its start: its init waits, and no SIGTERM ends it.
    fn is_created(&self) -> bool {
        self.status == "CREATED"
    }
}

/// Where a task's output goes: fifos, or `file://` URIs.
#[derive(Clone, Debug, Default)]
pub struct Stdio {
    /// Empty for none.
    pub stdin: String,
    /// Empty for none.
    pub stdout: String,
    /// Empty for none.
    pub stderr: String,
}

fn task(process: &Process) -> Task {
    let status = match TaskStatus::try_from(process.status) {
        Ok(TaskStatus::Created) => "CREATED",
        Ok(TaskStatus::Running) => "RUNNING",
        Ok(TaskStatus::Stopped) => "STOPPED",
        Ok(TaskStatus::Paused) => "PAUSED",
        Ok(TaskStatus::Pausing) => "PAUSING",
        Ok(TaskStatus::Unknown) | Err(_) => "UNKNOWN",
    };
    Task { pid: process.pid, status, exit: process.exit_status }
}

impl Containerd {
    fn tasks_client(&self) -> TasksClient<containerd_client::tonic::transport::Channel> {
        TasksClient::new(self.channel.clone())
    }

    /// All tasks by their containers' ids.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn tasks(&self) -> Result<HashMap<String, Task>, ContainerdError> {
        let request = self.request(ListTasksRequest::default())?;
        let answer = self.tasks_client().list(request).await;
        let tasks = answer.map_err(refused("tasks cannot be listed"))?.into_inner().tasks;
        // 1.6 leaves `container_id` empty.
        Ok(tasks.iter().map(|process| (process.id.clone(), task(process))).collect())
    }

    /// The task of a container; `None` without one.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn task(&self, id: &str) -> Result<Option<Task>, ContainerdError> {
        let request =
            self.request(GetRequest { container_id: id.to_owned(), ..GetRequest::default() })?;
        let answer = self.tasks_client().get(request).await;
        match answer.map_err(refused(format!("the state of {id} cannot be read"))) {
            Ok(answer) => Ok(answer.into_inner().process.as_ref().map(task)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a container's task; the runtime compiles its module here.
    ///
    /// # Errors
    /// The runtime's error.
    pub async fn create_task(
        &self,
        id: &str,
        rootfs: Vec<Mount>,
        stdio: &Stdio,
    ) -> Result<(), ContainerdError> {
        let request = CreateTaskRequest {
            container_id: id.to_owned(),
            rootfs,
            stdin: stdio.stdin.clone(),
            stdout: stdio.stdout.clone(),
            stderr: stdio.stderr.clone(),
            ..CreateTaskRequest::default()
        };
        let answer = self.tasks_client().create(self.request(request)?).await;
        answer.map(|_| ()).map_err(refused(format!("{id} cannot be started")))
    }

    /// Starts a task.
    ///
    /// # Errors
    /// The runtime's error.
    pub async fn start_task(&self, id: &str) -> Result<(), ContainerdError> {
        let request = StartRequest { container_id: id.to_owned(), ..StartRequest::default() };
        let answer = self.tasks_client().start(self.request(request)?).await;
        answer.map(|_| ()).map_err(refused(format!("{id} cannot be started")))
    }

    /// Waits until a task ends; its exit code.
    ///
    /// # Errors
    /// When there is no task.
    pub async fn wait_task(&self, id: &str) -> Result<u32, ContainerdError> {
        let request = WaitRequest { container_id: id.to_owned(), ..WaitRequest::default() };
        let answer = self.tasks_client().wait(self.request(request)?).await;
        Ok(answer
            .map_err(refused(format!("the end of {id} is not known")))?
            .into_inner()
            .exit_status)
    }

    /// Sends a signal; a task that has ended is no error.
    /// SIGTERM goes to init alone, which lets workers end their requests; SIGKILL to all processes.
    async fn signal(&self, id: &str, signal: u32) -> Result<(), ContainerdError> {
        let request = KillRequest {
            container_id: id.to_owned(),
            signal,
            all: signal == SIGKILL,
            ..KillRequest::default()
        };
        let answer = self.tasks_client().kill(self.request(request)?).await;
        match answer.map_err(refused(format!("{id} cannot be stopped"))) {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// Ends a container's task: asks it, and kills it when it does not end in time. Its container stays.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn stop_task(&self, id: &str) -> Result<(), ContainerdError> {
        for (signal, max) in [(SIGTERM, STOP_MAX), (SIGKILL, KILL_MAX)] {
            match self.task(id).await? {
                Some(task) if task.is_created() && signal == SIGTERM => continue,
                Some(task) if task.is_alive() => {}
                _ => return Ok(()),
            }
            self.signal(id, signal).await?;
            match tokio::time::timeout(max, self.wait_task(id)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) if error.is_missing() => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_elapsed) => {}
            }
        }
        Err(ContainerdError::Answer {
            operation: format!("{id} cannot be stopped"),
            problem: format!("it did not end within {} s of SIGKILL", KILL_MAX.as_secs()),
        })
    }

    /// Removes a container with its task, whatever its state.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn remove(&self, id: &str) -> Result<(), ContainerdError> {
        self.stop_task(id).await?;
        let request = self.request(DeleteTaskRequest { container_id: id.to_owned() })?;
        let answer = self.tasks_client().delete(request).await;
        match answer.map_err(refused(format!("the task of {id} cannot be removed"))) {
            Err(error) if !error.is_missing() => return Err(error),
            _ => {}
        }
        self.delete_container(id).await
    }
}
