//! What libcontainer runs as the container's process, after namespaces, cgroup, `pivot_root`, uid,
//! capabilities and seccomp are in force.
#![expect(unsafe_code, reason = "closes every descriptor that the function was not given")]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::default::DefaultExecutor;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};

use crate::sys::process::{SingleThreaded, close_all_on_exec, exit_now, keep_only, reset_signals};
use crate::vm::Module;
use crate::wire::control::FunctionLaunch;

use super::builder::Diagnostics;
use super::init::{EXIT_START_FAILED, Sandbox};

/// Runs the OCI process itself: pause, busybox, sidecars.
#[derive(Clone, Copy, Debug)]
pub struct NativeExecutor;

impl Executor for NativeExecutor {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        // libcontainer did this, except for what LISTEN_FDS in the shim's environment names.
        if !close_all_on_exec() {
            return Err(ExecutorError::Other("the kernel has no close_range".into()));
        }
        reset_signals().map_err(|error| ExecutorError::Execution(error.into()))?;
        DefaultExecutor {}.exec(spec)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        DefaultExecutor {}.validate(spec)
    }
}

/// Runs a function: becomes its sandbox init.
#[derive(Debug)]
pub struct FunctionExecutor<M> {
    /// Taken once, in the process that becomes init; clones share it because libcontainer clones executors.
    function: Rc<RefCell<Option<Function<M>>>>,
}

/// A function whose code is loaded, before its container exists.
#[derive(Debug)]
pub struct Function<M> {
    /// What to run.
    pub launch: FunctionLaunch,
    /// Its code.
    pub module: M,
    /// Lets init fork.
    pub threads: SingleThreaded,
    /// Socket to the shim.
    pub broker: OwnedFd,
    /// Listening receiver; secondaries only.
    pub receiver: Option<OwnedFd>,
}

impl<M> FunctionExecutor<M> {
    /// An executor of `function`.
    #[must_use]
    pub fn new(function: Function<M>) -> Self {
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
    fn exec(&self, _spec: &Spec) -> Result<(), ExecutorError> {
        let Some(function) = self.function.borrow_mut().take() else {
            return Err(ExecutorError::Other("a function runs once".into()));
        };
        // Its descriptor is closed next.
        Diagnostics::stop();
        // Never returned to libcontainer, which takes a returning executor for a panic.
        exit_now(match enter(function) {
            Ok(sandbox) => sandbox.run(),
            Err(error) => {
                eprintln!("cwasi: the sandbox's descriptors cannot be set up: {error}");
                EXIT_START_FAILED
            }
        })
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        // The module was loaded and checked before the container was built.
        Ok(())
    }
}

/// Leaves stdio, the broker and the receiver, and nothing of libcontainer's or the host's.
fn enter<M>(function: Function<M>) -> std::io::Result<Sandbox<M>> {
    let Function { launch, module, threads, broker, receiver } = function;
    let mut keep = vec![broker];
    keep.extend(receiver);
    // SAFETY:
    // - this process never returns to libcontainer, which owns the other descriptors; the diagnostics,
    //   which own one too, were stopped.
    let mut kept = unsafe { keep_only(keep) }?.into_iter();
    let broker = kept.next().ok_or(std::io::ErrorKind::NotFound)?;
    Ok(Sandbox { launch, module, threads, broker, receiver: kept.next() })
}
