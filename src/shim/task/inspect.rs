//! The verbs that change nothing: state, pids, stats, connect.

use containerd_shim::api::{
    ConnectRequest, ConnectResponse, PidsRequest, PidsResponse, StateRequest, StateResponse,
    StatsRequest, StatsResponse,
};
use containerd_shim::protos::protobuf::CodedOutputStream;
use containerd_shim::protos::protobuf::well_known_types::any::Any;
use containerd_shim::protos::types::task::ProcessInfo;

use super::blocking::blocking;
use super::container::Status;
use super::error::TaskError;
use super::metrics;
use super::table::Tasks;
use crate::cgroups;
use crate::publisher::timestamp;

/// What `ctr task ps` prints about a process, in runc's type: only its first field, `exec_id`, exists.
const PROCESS_DETAILS: &str = "containerd.runc.v1.ProcessDetails";
const EXEC_ID_FIELD: u32 = 1;

fn process_details(exec_id: &str) -> Any {
    let mut value = Vec::new();
    let mut message = CodedOutputStream::vec(&mut value);
    message
        .write_string(EXEC_ID_FIELD, exec_id)
        .and_then(|()| message.flush())
        .expect("a vector takes all bytes");
    drop(message);
    Any { type_url: PROCESS_DETAILS.to_owned(), value, ..Any::default() }
}

impl Tasks {
    /// Where the task is in its life.
    ///
    /// # Errors
    /// When there is no such task.
    pub fn state(&self, request: &StateRequest) -> Result<StateResponse, TaskError> {
        if !request.exec_id.is_empty() {
            return self.state_exec(&request.id, &request.exec_id);
        }
        let container = self.find(&request.id)?;
        let status = container.status();
        let mut response = StateResponse::new();
        response.set_id(container.id.clone());
        response.set_bundle(container.bundle.display().to_string());
        response.set_pid(container.api_pid());
        response.set_status(status.api());
        response.set_stdin(container.stdio.stdin.clone());
        response.set_stdout(container.stdio.stdout.clone());
        response.set_stderr(container.stdio.stderr.clone());
        response.set_terminal(container.terminal);
        if let Status::Stopped(exit) = status {
            response.set_exit_status(exit.api_status());
            response.set_exited_at(timestamp(exit.at));
        }
        Ok(response)
    }

    /// The task's processes. Never "not found" nor empty for a task that is here: containerd takes that for a leaked
    /// shim after a restart. A task that has ended has its init's number until it is deleted.
    ///
    /// # Errors
    /// When there is no such task.
    pub async fn pids(&self, request: &PidsRequest) -> Result<PidsResponse, TaskError> {
        let container = self.find(&request.id)?;
        let directories = container.record.cgroups.clone();
        let found = blocking(&container.id, move || Ok(cgroups::processes(&directories)));
        let mut pids = found.await?;
        // Else containerd 1.7 and 2.x would remove a task that ended during their restart, and its exit code with it.
        if pids.is_empty() {
            pids.insert(container.pid);
        }
        let execs = container.execs.running();
        let mut response = PidsResponse::new();
        response.processes = pids
            .into_iter()
            .map(|pid| {
                let mut process = ProcessInfo::new();
                process.set_pid(u32::try_from(pid).unwrap_or(0));
                if let Some(exec_id) = execs.get(&process.pid) {
                    process.set_info(process_details(exec_id));
                }
                process
            })
            .collect();
        Ok(response)
    }

    /// What the task's cgroups say about its use of the node.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn stats(&self, request: &StatsRequest) -> Result<StatsResponse, TaskError> {
        let container = self.find(&request.id)?;
        if matches!(container.status(), Status::Stopped(_)) {
            return Err(container.refuse("stats"));
        }
        let id = container.id.clone();
        let directories = container.record.cgroups.clone();
        let metrics = blocking(&container.id, move || {
            let failed = |error: containerd_shim::Error| TaskError::Metrics {
                id,
                message: error.to_string(),
            };
            metrics::read(&directories).map_err(failed)
        });
        let mut response = StatsResponse::new();
        response.set_stats(metrics.await?);
        Ok(response)
    }

    /// Who serves the task.
    ///
    /// # Errors
    /// When there is no such task.
    pub fn connect(&self, request: &ConnectRequest) -> Result<ConnectResponse, TaskError> {
        let container = self.find(&request.id)?;
        let mut response = ConnectResponse::new();
        response.set_shim_pid(std::process::id());
        response.set_task_pid(container.api_pid());
        response.set_version(env!("CARGO_PKG_VERSION").to_owned());
        Ok(response)
    }
}
