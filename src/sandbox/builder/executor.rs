//! The code that libcontainer runs as the container's process. Runs in sandbox init, and in native containers until
//! their exec.
//!
//! Namespaces, cgroup, `pivot_root`, uid, capabilities and seccomp are in force already.
#![expect(unsafe_code, reason = "closes every descriptor that the function was not given")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use libcontainer::capabilities::drop_privileges;
use libcontainer::oci_spec::runtime::{LinuxCapabilities, LinuxSeccomp, Process, Spec};
use libcontainer::seccomp::initialize_seccomp;
use libcontainer::syscall::syscall::create_syscall;
use libcontainer::workload::default::DefaultExecutor;
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use nix::unistd::geteuid;

use crate::awaited::{self, FunctionCode};
use crate::cause_chain::cause_chain;
use crate::exec_filter;
use crate::function_log::FunctionLog;
use crate::host_paths::HostPaths;
use crate::inherited::Sandbox;
use crate::{exit_codes, init, privileges, stderr};
use cwasi_sys::process::{
    SingleThreaded, close_all_on_exec, close_others, exit_now, reset_signals,
};
use cwasi_vm::Module;
use cwasi_wire::control::FunctionLaunch;

use super::causes::LockDownError;
use super::diagnostics::Diagnostics;
use super::lsm::{self, label_exec};
use super::spec::HOME_OF_USER;

/// Bytes of `/etc/passwd` that are looked at.
const PASSWD_MAX: u64 = 1 << 20;

/// Runs the OCI process itself: pause, busybox, sidecars.
#[derive(Clone, Copy, Debug)]
pub struct NativeExecutor;

impl Executor for NativeExecutor {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        prepare_exec(spec)?;
        DefaultExecutor {}.exec(spec)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        // Without PATH libcontainer refuses even a program that is named by its path.
        let process = spec.process().as_ref();
        let env = process.and_then(|process| process.env().as_ref());
        let has_path = env.is_some_and(|env| env.iter().any(|entry| entry.starts_with("PATH=")));
        let program = process.and_then(|process| process.args().as_ref()?.first());
        match program {
            Some(program) if !has_path && program.contains('/') => match std::fs::metadata(program)
            {
                Ok(_) => Ok(()),
                Err(error) => Err(ExecutorValidationError::ArgValidationError(format!(
                    "{program} cannot be executed: {error}"
                ))),
            },
            _ => DefaultExecutor {}.validate(spec),
        }
    }

    fn setup_envs(&self, mut envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        if let Some(home) = envs.get_mut("HOME").filter(|home| *home == HOME_OF_USER) {
            *home = home_of(geteuid().as_raw(), &passwd());
        }
        DefaultExecutor {}.setup_envs(envs)
    }
}

/// What a program of an image finds: no descriptors beside stdio, no blocked or ignored signals, and its label.
fn prepare_exec(spec: &Spec) -> Result<(), ExecutorError> {
    label_exec(spec).map_err(|error| ExecutorError::Execution(error.into()))?;
    // libcontainer did this, except for what LISTEN_FDS in the shim's environment names.
    close_all_on_exec().map_err(|error| ExecutorError::Execution(error.into()))?;
    reset_signals().map_err(|error| ExecutorError::Execution(error.into()))
}

/// Runs one more process of a native container, under the container's seccomp profile, which libcontainer leaves out.
#[derive(Clone, Debug)]
pub struct TenantExecutor {
    seccomp: Option<LinuxSeccomp>,
    /// What the process keeps, if libcontainer was not told: installing a profile takes more.
    capabilities: Option<LinuxCapabilities>,
}

impl TenantExecutor {
    /// An executor for `process` in a container with this spec; and the process as libcontainer gets it.
    #[must_use]
    pub fn new(container: &Spec, mut process: Process) -> (Self, Process) {
        let seccomp = container.linux().as_ref().and_then(|linux| linux.seccomp().clone());
        let mut capabilities = None;
        // With no_new_privs a profile takes no capability, and comes last, when no more calls of ours follow.
        if seccomp.is_some() && process.no_new_privileges() != Some(true) {
            capabilities = process.capabilities().clone();
            process.set_capabilities(None);
        }
        (Self { seccomp, capabilities }, process)
    }
}

impl Executor for TenantExecutor {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        prepare_exec(spec)?;
        if let Some(seccomp) = &self.seccomp {
            let listener = initialize_seccomp(seccomp)
                .map_err(|error| ExecutorError::Execution(error.into()))?;
            if listener.is_some() {
                let text = "a seccomp profile with SCMP_ACT_NOTIFY allows no exec";
                return Err(ExecutorError::Other(text.into()));
            }
        }
        if let Some(capabilities) = &self.capabilities {
            drop_privileges(capabilities, &*create_syscall())
                .map_err(|error| ExecutorError::Execution(error.into()))?;
        }
        DefaultExecutor {}.exec(spec)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        NativeExecutor.validate(spec)
    }

    fn setup_envs(&self, envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        NativeExecutor.setup_envs(envs)
    }
}

/// The container's `/etc/passwd`; empty when there is none that can be read.
fn passwd() -> String {
    let mut text = String::new();
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/etc/passwd");
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|metadata| metadata.is_file())
    {
        // What was read before an error is as good as it gets.
        let _partly = file.take(PASSWD_MAX).read_to_string(&mut text);
    }
    text
}

/// Home directory of `uid`, as runc finds it.
fn home_of(uid: u32, passwd: &str) -> String {
    let uid = uid.to_string();
    let entry = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2).is_some_and(|field| *field == uid));
    let home = entry.and_then(|fields| fields.get(5).copied()).filter(|home| !home.is_empty());
    home.unwrap_or("/").to_owned()
}

/// Runs a function: becomes its sandbox init.
#[derive(Debug)]
pub struct FunctionExecutor<M> {
    /// Taken once, in the process that becomes init; clones share it because libcontainer clones executors.
    function: Rc<RefCell<Option<LoadedFunction<M>>>>,
}

/// A function whose code is loaded, before its container exists, or comes later.
#[derive(Debug)]
pub struct LoadedFunction<M> {
    pub launch: FunctionLaunch,
    pub code: FunctionCode<M>,
    pub threads: SingleThreaded,
    /// Socket to the shim.
    pub broker: OwnedFd,
    /// Its stderr, opened so that writes do not wait.
    pub log: OwnedFd,
    /// Listening receiver; secondaries only.
    pub receiver: Option<OwnedFd>,
    /// Its directories, outside of a container.
    pub host_paths: HostPaths,
    /// True when this process can run no native code but what is mapped already.
    pub is_filtered: bool,
}

impl<M> FunctionExecutor<M> {
    #[must_use]
    pub fn new(function: LoadedFunction<M>) -> Self {
        Self { function: Rc::new(RefCell::new(Some(function))) }
    }
}

// Derived, it would ask for `M: Clone`.
impl<M> Clone for FunctionExecutor<M> {
    fn clone(&self) -> Self {
        Self { function: Rc::clone(&self.function) }
    }
}

impl<M: Module + 'static> Executor for FunctionExecutor<M> {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let Some(function) = self.function.borrow_mut().take() else {
            return Err(ExecutorError::Other("a function runs once".into()));
        };
        // Its descriptor is closed next.
        Diagnostics::stop();
        // Never returned to libcontainer, which takes a returning executor for a panic, nor unwound into it.
        let code = catch_unwind(AssertUnwindSafe(|| run(function, spec)));
        exit_now(code.unwrap_or(exit_codes::PANICKED))
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        // The module was loaded and checked before the container was built.
        Ok(())
    }

    fn setup_envs(&self, _envs: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // The guest's environment comes with its launch; the shim's is nothing to it.
        DefaultExecutor {}.setup_envs(HashMap::new())
    }
}

/// Becomes the sandbox's init; returns the exit code.
pub fn run<M: Module>(function: LoadedFunction<M>, spec: &Spec) -> i32 {
    let is_filtered = function.is_filtered;
    let sandbox = match enter(function) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            stderr::line(&format!("the sandbox's descriptors cannot be set up: {error}"));
            return exit_codes::START_FAILED;
        }
    };
    let entered = lsm::enter(spec).map_err(LockDownError::from);
    if let Err(error) = entered.and_then(|()| Ok(privileges::give_up(spec)?)) {
        return sandbox.start_failed(&cause_chain(&error));
    }
    let awaits_code = sandbox.launch.awaits_code;
    // The filter and Landlock come after it: they would refuse to load it.
    let sandbox = match awaited::load(sandbox) {
        Ok(sandbox) => sandbox,
        Err(code) => return code,
    };
    if awaits_code && let Err(error) = close_code(&sandbox) {
        return sandbox.start_failed(&format!("its code cannot be closed: {error}"));
    }
    match lock_down(&sandbox, is_filtered) {
        Ok(()) => init::run(sandbox),
        Err(error) => sandbox.start_failed(&cause_chain(&error)),
    }
}

/// Gives up what a function does not need, once its code is loaded.
fn lock_down<M>(sandbox: &Sandbox<M>, is_filtered: bool) -> Result<(), LockDownError> {
    if let Some(access) = sandbox.host_paths.access(sandbox.launch.egress.is_some()) {
        // Without Landlock the command that started this function has said so.
        let _is_enforced = access.restrict()?;
    }
    if !is_filtered {
        exec_filter::install()?;
    }
    Ok(())
}

/// Leaves stdio, the broker, the log and the receiver, and nothing of libcontainer's or the host's.
fn enter<M: Module>(function: LoadedFunction<M>) -> std::io::Result<Sandbox<FunctionCode<M>>> {
    let LoadedFunction { launch, code, threads, broker, log, receiver, host_paths, .. } = function;
    let mut keep = vec![broker.as_fd(), log.as_fd()];
    keep.extend(receiver.as_ref().map(AsFd::as_fd));
    keep.extend(code.descriptors());
    keep.extend(host_paths.descriptors());
    // SAFETY:
    // - this process never returns to libcontainer, which owns the other descriptors; the diagnostics,
    //   which own one too, were stopped.
    unsafe { close_others(&keep) }?;
    code.forked();
    stderr::install(FunctionLog::new(log, launch.log_has_times)?);
    Ok(Sandbox {
        launch,
        module: code,
        threads,
        broker,
        receiver,
        host_paths,
        memory_ceiling: None,
    })
}

/// Closes the files of code that was loaded here, which the engine keeps open.
fn close_code<M: Module>(sandbox: &Sandbox<M>) -> std::io::Result<()> {
    let log = stderr::log();
    let mut keep = vec![sandbox.broker.as_fd()];
    keep.extend(log.iter().map(|log| log.as_fd()));
    keep.extend(sandbox.receiver.as_ref().map(AsFd::as_fd));
    keep.extend(sandbox.module.descriptors());
    keep.extend(sandbox.host_paths.descriptors());
    // SAFETY:
    // - the engine maps the files, never reads them again, and lives as long as the process; it names what it needs.
    unsafe { close_others(&keep) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_come_from_the_file_only() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nu:x:1000:1000::/home/u:\nn:x:7:7:::\n";
        assert_eq!(home_of(0, passwd), "/root");
        assert_eq!(home_of(1000, passwd), "/home/u");
        assert_eq!(home_of(7, passwd), "/");
        assert_eq!(home_of(8, passwd), "/");
        assert_eq!(home_of(0, ""), "/");
    }
}
