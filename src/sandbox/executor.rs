//! What libcontainer runs as the container's process, after namespaces, cgroup, `pivot_root`, uid,
//! capabilities and seccomp are in force.

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::default::DefaultExecutor;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};

use crate::sys::process::{close_all_on_exec, reset_signals};

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
