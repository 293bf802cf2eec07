//! One more process in a native container that runs.

use std::time::Duration;

use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    DeleteProcessRequest, ExecProcessRequest, KillRequest, StartRequest, WaitRequest,
};
use oci_spec::runtime::Process;

use super::{Containerd, ContainerdError, refused, unique};

/// containerd's name for the type of a process.
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
const SIGKILL: u32 = 9;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// By itself, with this exit code.
    Ended(u32),
    /// It took too long.
    Killed,
}

impl Containerd {
    /// Runs a program in a container, as the container's own process: same user, same environment. Its output is lost.
    /// It is killed after `max`.
    ///
    /// # Errors
    /// When containerd refuses, such as for a program that is not there.
    pub async fn exec(
        &self,
        id: &str,
        words: &[String],
        max: Duration,
    ) -> Result<Executed, ContainerdError> {
        let operation = || format!("a process in {id}");
        let answer = |problem: String| ContainerdError::Answer { operation: operation(), problem };
        let container = self.containers().await?.into_iter().find(|container| container.id == id);
        let process = container.and_then(|container| container.spec.process().clone());
        let mut process: Process =
            process.ok_or_else(|| answer("there is no such container".to_owned()))?;
        process.set_args(Some(words.to_vec()));
        let value = serde_json::to_vec(&process).map_err(|error| answer(error.to_string()))?;
        let exec_id = format!("health-{}", unique());
        let request = ExecProcessRequest {
            container_id: id.to_owned(),
            spec: Some(prost_types::Any { type_url: PROCESS_TYPE.to_owned(), value }),
            exec_id: exec_id.clone(),
            ..ExecProcessRequest::default()
        };
        let mut client = TasksClient::new(self.channel.clone());
        client.exec(self.request(request)?).await.map_err(refused(operation()))?;
        let ended = self.ended(id, &exec_id, max).await;
        let (container_id, exec_id) = (id.to_owned(), exec_id);
        let delete = DeleteProcessRequest { container_id, exec_id };
        // It goes with its container at the latest.
        let _deleted = client.delete_process(self.request(delete)?).await;
        ended
    }

    async fn ended(
        &self,
        id: &str,
        exec_id: &str,
        max: Duration,
    ) -> Result<Executed, ContainerdError> {
        let mut client = TasksClient::new(self.channel.clone());
        let (container_id, exec_id) = (id.to_owned(), exec_id.to_owned());
        let fail = || refused(format!("a process in {id}"));
        let start = StartRequest { container_id: container_id.clone(), exec_id: exec_id.clone() };
        client.start(self.request(start)?).await.map_err(fail())?;
        let wait = || WaitRequest { container_id: container_id.clone(), exec_id: exec_id.clone() };
        match tokio::time::timeout(max, client.wait(self.request(wait())?)).await {
            Ok(answer) => Ok(Executed::Ended(answer.map_err(fail())?.into_inner().exit_status)),
            Err(_elapsed) => {
                let kill = KillRequest {
                    container_id: container_id.clone(),
                    exec_id: exec_id.clone(),
                    signal: SIGKILL,
                    all: false,
                };
                client.kill(self.request(kill)?).await.map_err(fail())?;
                client.wait(self.request(wait())?).await.map_err(fail())?;
                Ok(Executed::Killed)
            }
        }
    }
}
