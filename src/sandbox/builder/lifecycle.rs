//! The verbs after `create`, on libcontainer's state below the group's root. Runs in the builder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libcgroups::common::{
    CgroupConfig, CgroupManager, ControllerOpt, FreezerState, create_cgroup_manager,
};
use libcontainer::container::{Container, ContainerStatus};
use libcontainer::error::LibcontainerError;
use libcontainer::oci_spec::runtime::LinuxResources;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cwasi_wire::control::VerbRequest;

use super::causes::CgroupCause;
use super::spec::forget;
use super::systemd::{Scope, for_systemd};
use super::{BuilderError, refused};

/// Longest time that killed processes may take to be gone.
const DYING_MAX: Duration = Duration::from_secs(10);
/// Time between two checks.
const DYING_POLL: Duration = Duration::from_millis(20);

fn failed(
    request: &VerbRequest,
    done: &'static str,
) -> impl Fn(LibcontainerError) -> BuilderError + Copy {
    move |source| BuilderError::Container {
        id: request.container.clone(),
        done,
        source: Box::new(source),
    }
}

fn state_dir(request: &VerbRequest) -> PathBuf {
    request.root.join(&request.container)
}

/// Lets init run the workload. Done when init was told, before the workload's first instruction.
pub fn start(request: &VerbRequest) -> Result<(), BuilderError> {
    let failed = failed(request, "started");
    Container::load(state_dir(request)).and_then(|mut container| container.start()).map_err(failed)
}

/// Freezes every process of the container, which runs: the shim may have started it without a builder.
pub fn pause(request: &VerbRequest) -> Result<(), BuilderError> {
    let failed = failed(request, "paused");
    let mut container = Container::load(state_dir(request)).map_err(failed)?;
    container.set_status(ContainerStatus::Running).save().map_err(failed)?;
    container.pause().map_err(failed)
}

pub fn resume(request: &VerbRequest) -> Result<(), BuilderError> {
    let failed = failed(request, "resumed");
    Container::load(state_dir(request)).and_then(|mut container| container.resume()).map_err(failed)
}

/// Writes new limits to the container's cgroup.
pub fn update(request: &VerbRequest, resources: &str) -> Result<(), BuilderError> {
    let mut resources: LinuxResources = serde_json::from_str(resources)
        .map_err(|source| BuilderError::Resources { id: request.container.clone(), source })?;
    // Device rules are those of the create, as with runc: Kubernetes repeats them with each update.
    resources.set_devices(None);
    refused::check_resources(&resources)?;
    let failed = failed(request, "updated");
    let container = Container::load(state_dir(request)).map_err(failed)?;
    let path = container.spec().map_err(failed)?.cgroup_path;
    let apply = |systemd_cgroup, resources: &LinuxResources| {
        let cgroup_error = |source: CgroupCause| BuilderError::Cgroup {
            id: request.container.clone(),
            path: path.clone(),
            source: Box::new(source),
        };
        let options = ControllerOpt {
            resources,
            disable_oom_killer: false,
            oom_score_adj: None,
            freezer_state: None,
        };
        create_cgroup_manager(cgroup_config(request, &path, systemd_cgroup))
            .map_err(|source| cgroup_error(source.into()))?
            .apply(&options)
            .map_err(|source| cgroup_error(source.into()))
    };
    let (true, Some(init)) = (container.systemd(), container.pid()) else {
        return apply(false, &resources);
    };
    // libcontainer's nix is an older one with a type of its own.
    let scope = Scope::of(&request.container, Pid::from_raw(init.as_raw()))?;
    let resources = scope.with_quota(resources);
    apply(true, &for_systemd(resources.clone()))?;
    scope.apply(&resources)
}

/// Kills what still runs and removes cgroups and state. A container that is not there is deleted already.
pub fn delete(request: &VerbRequest) -> Result<(), BuilderError> {
    forget(request);
    let directory = state_dir(request);
    if !directory.exists() {
        return Ok(());
    }
    let failed = failed(request, "deleted");
    match Container::load(directory.clone()) {
        Ok(mut container) => {
            if let Ok(config) = container.spec() {
                kill_all(cgroup_config(request, &config.cgroup_path, container.systemd()));
            }
            delete_when_empty(&mut container).map_err(failed)
        }
        // A create that was killed may leave a directory without a readable state.
        Err(_unreadable) => std::fs::remove_dir_all(&directory)
            .map_err(|source| BuilderError::State { path: directory, source }),
    }
}

/// libcontainer gives killed processes a fifth of a second to leave their cgroups. On a busy machine, and with
/// much memory to free, they take longer.
fn delete_when_empty(container: &mut Container) -> Result<(), LibcontainerError> {
    let started = Instant::now();
    loop {
        match container.delete(true) {
            Err(_still_dying) if started.elapsed() < DYING_MAX => std::thread::sleep(DYING_POLL),
            end => return end,
        }
    }
}

/// Kills every process of the cgroup: also those that outlived init in a shared pid namespace, and those
/// of a create that never got as far as naming its init. What cannot be killed fails the removal later.
fn kill_all(cgroup: CgroupConfig) {
    let Ok(cgroup) = create_cgroup_manager(cgroup) else { return };
    // A frozen process of a cgroup v1 hierarchy dies only when it is thawed.
    drop(cgroup.freeze(FreezerState::Thawed));
    for pid in cgroup.get_all_pids().unwrap_or_default() {
        // libcgroups' nix is an older one with a type of its own.
        let _gone = kill(Pid::from_raw(pid.as_raw()), Signal::SIGKILL);
    }
}

fn cgroup_config(request: &VerbRequest, path: &Path, systemd_cgroup: bool) -> CgroupConfig {
    CgroupConfig {
        cgroup_path: path.to_owned(),
        systemd_cgroup,
        container_name: request.container.clone(),
    }
}
