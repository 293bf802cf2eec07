//! The verbs that only look: state, pids, stats, connect.

use std::fs;
use std::path::PathBuf;

use containerd_shim::api::{
    ConnectRequest, ConnectResponse, PidsRequest, PidsResponse, StateRequest, StateResponse,
    StatsRequest, StatsResponse,
};
use containerd_shim::cgroup::{collect_metrics, get_cgroup};
use containerd_shim::protos::cgroups::metrics::Metrics;
use containerd_shim::protos::types::task::ProcessInfo;
use containerd_shim::util::convert_to_any;

use super::container::Status;
use super::create::blocking;
use super::error::TaskError;
use super::table::Tasks;
use crate::shim::cgroups;
use crate::shim::publisher::timestamp;

/// Nanoseconds in a microsecond.
const NS_PER_US: u64 = 1000;

impl Tasks {
    /// Where the task is in its life.
    ///
    /// # Errors
    /// When there is no such task.
    pub fn state(&self, request: &StateRequest) -> Result<StateResponse, TaskError> {
        let container = self.find_init(&request.id, &request.exec_id)?;
        let status = container.status();
        let mut response = StateResponse::new();
        response.set_id(container.id.clone());
        response.set_bundle(container.bundle.display().to_string());
        response.set_pid(container.api_pid());
        response.set_status(status.api());
        response.set_stdin(container.stdio.stdin.clone());
        response.set_stdout(container.stdio.stdout.clone());
        response.set_stderr(container.stdio.stderr.clone());
        if let Status::Stopped(exit) = status {
            response.set_exit_status(u32::try_from(exit.status).unwrap_or(u32::MAX));
            response.set_exited_at(timestamp(exit.at));
        }
        Ok(response)
    }

    /// The task's processes; empty when it has ended. Never "not found" for a task that is here: containerd
    /// takes that for a leaked shim after a restart.
    ///
    /// # Errors
    /// When there is no such task.
    pub async fn pids(&self, request: &PidsRequest) -> Result<PidsResponse, TaskError> {
        let container = self.find(&request.id)?;
        let directories = container.record.cgroups.clone();
        let found = blocking(&container.id, move || Ok(cgroups::processes(&directories)));
        let mut pids = found.await?;
        if pids.is_empty() && !matches!(container.status(), Status::Stopped(_)) {
            pids.insert(container.pid);
        }
        let mut response = PidsResponse::new();
        response.processes = pids
            .into_iter()
            .map(|pid| {
                let mut process = ProcessInfo::new();
                process.set_pid(u32::try_from(pid).unwrap_or(0));
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
        let (id, pid) = (container.id.clone(), container.api_pid());
        let directories = container.record.cgroups.clone();
        let metrics = blocking(&container.id, move || {
            let failed = |error: containerd_shim::Error| TaskError::Metrics {
                id: id.clone(),
                message: error.to_string(),
            };
            let cgroup = get_cgroup(pid).map_err(failed)?;
            let mut metrics = collect_metrics(&cgroup).map_err(failed)?;
            complete(&mut metrics, &directories);
            convert_to_any(Box::new(metrics)).map_err(failed)
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

/// Adds what the library leaves out: CPU time under cgroup v1 (its own hierarchy there), nanoseconds instead
/// of microseconds under v2, and the memory limit.
fn complete(metrics: &mut Metrics, directories: &[PathBuf]) {
    let read = |file: &str| {
        let text = directories.iter().find_map(|dir| fs::read_to_string(dir.join(file)).ok())?;
        text.trim().parse::<u64>().ok()
    };
    let mut cpu = metrics.cpu.clone().unwrap_or_default();
    let mut usage = cpu.usage.clone().unwrap_or_default();
    if let Some(total_ns) = read("cpuacct.usage") {
        usage.set_total(total_ns);
        usage.set_user(read("cpuacct.usage_user").unwrap_or(0));
        usage.set_kernel(read("cpuacct.usage_sys").unwrap_or(0));
    } else {
        usage.set_total(usage.total().saturating_mul(NS_PER_US));
        usage.set_user(usage.user().saturating_mul(NS_PER_US));
        usage.set_kernel(usage.kernel().saturating_mul(NS_PER_US));
    }
    cpu.set_usage(usage);
    metrics.set_cpu(cpu);
    if let Some(limit) = read("memory.limit_in_bytes").or_else(|| read("memory.max")) {
        let mut memory = metrics.memory.clone().unwrap_or_default();
        let mut usage = memory.usage.clone().unwrap_or_default();
        usage.set_limit(limit);
        memory.set_usage(usage);
        metrics.set_memory(memory);
    }
}
