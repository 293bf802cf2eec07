//! `exec`: one more process in a native container that runs.
//!
//! libcontainer's tenant builder joins the namespaces and the cgroup. It reads its input from files that belong to the
//! container and leaves sockets beside them, so it gets a copy of the container's state in a directory of this
//! builder's own. What it does other than runc is done here:
//!
//! - A process without capabilities, rlimits, AppArmor profile, SELinux label or OOM score of its own has the container's.
//! - libcontainer forgets the container's seccomp profile. [`TenantExecutor`] installs it, before it gives up the
//!   capabilities that this takes.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::container::{Container, ContainerStatus};
use libcontainer::error::LibcontainerError;
use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{Process, Spec};
use libcontainer::syscall::syscall::SyscallType;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

use cwasi_wire::control::{ExecSpec, VerbRequest};

use super::console::Console;
use super::executor::TenantExecutor;
use super::spec::{complete, files_of, find_root};
use super::{BuilderError, Made, lsm, refused};

/// Streams of the process.
const DESCRIPTORS: usize = 3;

/// Runs the process and returns it.
pub fn exec(
    request: &VerbRequest,
    spec: &ExecSpec,
    descriptors: Vec<OwnedFd>,
) -> Result<Made, BuilderError> {
    let got = descriptors.len();
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors) else {
        return Err(BuilderError::Descriptors { expected: DESCRIPTORS, got });
    };
    let failed = |source| not_executed(&request.container, source);
    let (container, process) = read(request, spec)?;
    let has_terminal = process.terminal() == Some(true);
    let asked = process.clone();
    let (executor, process) = TenantExecutor::new(&container, process);
    let copy = Copy::new(request, container, &process)?;
    let builder = ContainerBuilder::new(request.container.clone(), SyscallType::default())
        .with_root_path(&copy.directory)
        .map_err(failed)?
        .with_executor(executor);
    let console = if has_terminal { Some(Console::new(request)?) } else { None };
    let builder = match &console {
        Some(console) => builder.with_console_socket(Some(console.path())),
        None => builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr),
    };
    let pid = builder
        .as_tenant()
        .with_process(Some(copy.process()))
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(failed)?;
    // libcontainer's nix is an older one with a type of its own.
    let pid = Pid::from_raw(pid.as_raw());
    match console.map(|console| console.master(Some(&asked))).transpose() {
        Ok(terminal) => Ok(Made { pid, terminal }),
        Err(error) => {
            // It would have no peer.
            let _gone = kill(pid, Signal::SIGKILL);
            Err(error)
        }
    }
}

/// What libcontainer says, without the padding that it gives errors of the new process.
fn not_executed(id: &str, source: LibcontainerError) -> BuilderError {
    let source = match source {
        LibcontainerError::Other(text) => LibcontainerError::Other(text.replace('\0', "")),
        other => other,
    };
    BuilderError::Container { id: id.to_owned(), done: "entered", source: Box::new(source) }
}

/// The container's spec, and the process with what it leaves out.
fn read(request: &VerbRequest, spec: &ExecSpec) -> Result<(Spec, Process), BuilderError> {
    let path = spec.bundle.join("config.json");
    let unreadable = |source: OciSpecError| BuilderError::Spec { path: path.clone(), source };
    let mut container = Spec::load(&path).map_err(unreadable)?;
    find_root(&mut container, &spec.bundle)?;
    // Mounted and run when the container was made.
    container.set_mounts(None).set_hooks(None);
    let process: Process = serde_json::from_str(&spec.process)
        .map_err(|source| BuilderError::Process { id: request.container.clone(), source })?;
    let process = match container.process() {
        Some(init) => with_defaults(process, init),
        None => process,
    };
    refused::check_args(&process)?;
    lsm::check_label(lsm::PROCESS_LABEL, process.selinux_label().as_deref())?;
    Ok((container, complete(process)))
}

/// `process`, with init's settings in place of those that it leaves out.
fn with_defaults(mut process: Process, init: &Process) -> Process {
    if process.capabilities().is_none() {
        process.set_capabilities(init.capabilities().clone());
    }
    if process.rlimits().as_ref().is_none_or(Vec::is_empty) {
        process.set_rlimits(init.rlimits().clone());
    }
    if process.apparmor_profile().as_ref().is_none_or(String::is_empty) {
        process.set_apparmor_profile(init.apparmor_profile().clone());
    }
    if process.selinux_label().as_ref().is_none_or(String::is_empty) {
        process.set_selinux_label(init.selinux_label().clone());
    }
    if process.oom_score_adj().is_none() {
        process.set_oom_score_adj(init.oom_score_adj());
    }
    process
}

/// libcontainer's view of the container, for this builder alone; removed when dropped.
#[derive(Debug)]
struct Copy {
    directory: PathBuf,
}

impl Copy {
    fn new(request: &VerbRequest, spec: Spec, process: &Process) -> Result<Self, BuilderError> {
        let failed = |source| BuilderError::Container {
            id: request.container.clone(),
            done: "read",
            source: Box::new(source),
        };
        let mut container =
            Container::load(request.root.join(&request.container)).map_err(failed)?;
        let copy = Self { directory: files_of(request).join(format!("exec-{}", getpid())) };
        let state = copy.directory.join(&request.container);
        let written = |path: &Path| {
            let path = path.to_owned();
            |source: OciSpecError| BuilderError::Spec { path, source }
        };
        fs::create_dir_all(&state).map_err(OciSpecError::from).map_err(written(&state))?;
        container.root = state;
        container.state.bundle.clone_from(&copy.directory);
        // The shim knows that init runs; it may have started it without libcontainer.
        container.set_status(ContainerStatus::Running).save().map_err(failed)?;
        let config = copy.directory.join("config.json");
        spec.save(&config).map_err(written(&config))?;
        let text = serde_json::to_vec(process)
            .map_err(|source| BuilderError::Process { id: request.container.clone(), source })?;
        fs::write(copy.process(), text)
            .map_err(OciSpecError::from)
            .map_err(written(&copy.process()))?;
        Ok(copy)
    }

    fn process(&self) -> PathBuf {
        self.directory.join("process.json")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // What a killed builder leaves goes with the container.
        let _left = fs::remove_dir_all(&self.directory);
        // Empty unless another builder works on the container.
        let _used = fs::remove_dir(self.directory.parent().unwrap_or(Path::new("")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(more: &str) -> Process {
        let text = format!(r#"{{"cwd":"/","user":{{"uid":0,"gid":0}},"args":["x"]{more}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_process_has_its_own_settings_or_inits() {
        let all = r#","capabilities":{"bounding":["CAP_KILL"]},"apparmorProfile":"p","oomScoreAdj":7,
            "rlimits":[{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]"#;
        let init = process(all);
        let bare = with_defaults(process(""), &init);
        assert_eq!(bare.capabilities(), init.capabilities());
        assert_eq!(bare.rlimits(), init.rlimits());
        assert_eq!(bare.apparmor_profile(), init.apparmor_profile());
        assert_eq!(bare.oom_score_adj(), Some(7));
        let own = r#","capabilities":{},"apparmorProfile":"q","oomScoreAdj":1"#;
        let own = with_defaults(process(own), &init);
        assert_ne!(own.capabilities(), init.capabilities());
        assert_eq!(own.apparmor_profile().as_deref(), Some("q"));
        assert_eq!(own.oom_score_adj(), Some(1));
    }
}
