//! `create`: makes a container, without starting its workload. Runs in the builder.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::container::{Container, ContainerStatus, State};
use libcontainer::error::LibcontainerError;
use libcontainer::hooks::run_hooks;
use libcontainer::syscall::syscall::SyscallType;
use nix::unistd::Pid;

use crate::cause_chain::cause_chain;
use crate::{exec_filter, stderr};
use cwasi_sys::loopback;
use cwasi_sys::process::SingleThreaded;
use cwasi_vm::Engine;
use cwasi_wire::control::{CreateSpec, VerbRequest, Workload};

use super::console::Console;
use super::executor::{FunctionExecutor, NativeExecutor};
use super::function::{Descriptors, load};
use super::spec::{Extras, prepare};
use super::systemd::Scope;
use super::{BuilderError, Made, devices, noexec};

/// How libcontainer prints that a process of the container ended while another waited for it.
const CHANNEL_BROKEN: &str = "BrokenChannel";

/// How it prints that no process can be made.
const NO_MORE_PROCESSES: [&str; 2] = ["EAGAIN", "Try again"];

/// Builds the container and returns its init.
///
/// Modules are loaded before anything is built: after `pivot_root` and `setuid` the cache is out of reach.
pub fn create<E: Engine>(
    threads: SingleThreaded,
    request: &VerbRequest,
    spec: &CreateSpec,
    descriptors: Vec<OwnedFd>,
) -> Result<Made, BuilderError> {
    let Descriptors { stdin, stdout, stderr: log, sockets } =
        Descriptors::take(&spec.workload, descriptors)?;
    let failed = |source| BuilderError::Container {
        id: request.container.clone(),
        done: "created",
        source: Box::new(source),
    };
    let builder = ContainerBuilder::new(spec.id.clone(), SyscallType::default())
        .validate_id()
        .and_then(|builder| builder.with_root_path(&request.root))
        .map_err(failed)?;
    let (extras, specification) = prepare(request, spec)?;
    let builder = match &spec.workload {
        Workload::Native => builder.with_executor(NativeExecutor),
        Workload::Function(launch) => {
            let mut function = load::<E>(threads, launch, &log, sockets)?;
            // Everything that libcontainer does for the function from here on is under the filter too. Hooks are
            // programs, so that with any it comes when they have run, before the function's first step.
            // Code that comes later is loaded before it, too.
            if extras.hooks().is_none() && !launch.awaits_code {
                exec_filter::install()?;
                function.is_filtered = true;
            }
            builder.with_executor(FunctionExecutor::new(function))
        }
    };
    let console = if extras.has_terminal() { Some(Console::new(request)?) } else { None };
    let builder = match &console {
        Some(console) => builder.with_console_socket(Some(console.path())),
        None => builder.with_stdin(stdin).with_stdout(stdout).with_stderr(log),
    };
    let mut container = builder
        .as_init(&spec.bundle)
        .with_spec(specification)
        .with_state_dir(request.root.join(&request.container))
        .with_systemd(spec.systemd_cgroup)
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(|source| {
            run_poststop(spec, &extras);
            not_built(&request.container, &extras, source)
        })?;
    let is_function = matches!(spec.workload, Workload::Function(_));
    // libcontainer's nix is an older one with a type of its own.
    let pid = container.pid().map(|pid| Pid::from_raw(pid.as_raw()));
    let pid = pid.ok_or_else(|| BuilderError::NoPid { id: request.container.clone() })?;
    let restricted = restrict(&container, pid, &extras, is_function);
    let master = |console: Console| console.master(extras.process());
    match restricted.and_then(|()| console.map(master).transpose()) {
        Ok(terminal) => Ok(Made { pid, terminal }),
        Err(error) => {
            // Its workload must not start without the rules.
            drop(container.delete(true));
            Err(error)
        }
    }
}

/// Puts in force what libcontainer does not.
fn restrict(
    container: &Container,
    init: Pid,
    extras: &Extras,
    is_function: bool,
) -> Result<(), BuilderError> {
    let cgroup = if let Some(limits) = extras.scope_limits() {
        let scope = Scope::of(container.id(), init)?;
        scope.apply(limits)?;
        scope.path().to_owned()
    } else {
        cgroup_path(container)?
    };
    if let Some(filter) = extras.devices() {
        devices::attach(filter, &cgroup)?;
    }
    if is_function && extras.forbids_exec() {
        noexec::apply(init, extras.has_devices())?;
    }
    if extras.makes_network() {
        // As runc does. The last step: this process stays in the namespace.
        let namespace = PathBuf::from(format!("/proc/{init}/ns/net"));
        loopback::bring_up_in(&namespace)
            .map_err(|source| BuilderError::Loopback { namespace, source })?;
    }
    Ok(())
}

/// Where libcontainer made the container's cgroups.
fn cgroup_path(container: &Container) -> Result<PathBuf, BuilderError> {
    let failed = |source| BuilderError::Container {
        id: container.id().to_owned(),
        done: "found again",
        source: Box::new(source),
    };
    Ok(container.spec().map_err(failed)?.cgroup_path)
}

/// Gives the hooks of a create that failed their counterpart, as runc does: they free what those before made.
fn run_poststop(spec: &CreateSpec, extras: &Extras) {
    let hooks = extras.hooks().and_then(|hooks| hooks.poststop().clone());
    let state = State::new(&spec.id, ContainerStatus::Stopped, None, spec.bundle.clone());
    for hook in hooks.into_iter().flatten() {
        let one = vec![hook];
        if let Err(error) = run_hooks("poststop", Some(&one), Some(&state), None, None, None) {
            stderr::line(&format!("{}: {error}", spec.id));
        }
    }
}

/// What libcontainer's processes say when they can, and what it means when they cannot.
fn not_built(id: &str, extras: &Extras, source: LibcontainerError) -> BuilderError {
    let id = id.to_owned();
    let source = Box::new(source);
    let text = cause_chain(&*source);
    if text.contains(CHANNEL_BROKEN) {
        return BuilderError::Died { id, source };
    }
    match extras.pids_limit() {
        Some(limit) if limit > 0 && NO_MORE_PROCESSES.iter().any(|errno| text.contains(errno)) => {
            BuilderError::PidsLimit { limit, source }
        }
        _ => BuilderError::Container { id, done: "created", source },
    }
}
