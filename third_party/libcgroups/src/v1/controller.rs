use std::fs;
use std::path::Path;

use nix::unistd::Pid;

use crate::common::{self, CGROUP_PROCS, ControllerOpt, WrapIoResult, WrappedIoError};

/// The file of a v1 cgroup that takes single threads.
const TASKS: &str = "tasks";
/// Stands for the thread that writes it.
const CALLING_THREAD: u32 = 0;

pub(super) trait Controller {
    type Error: From<WrappedIoError>;
    type Resource;

    /// Adds a new task specified by its pid to the cgroup
    fn add_task(pid: Pid, cgroup_path: &Path) -> Result<(), Self::Error> {
        fs::create_dir_all(cgroup_path).wrap_create_dir(cgroup_path)?;
        move_task(pid, cgroup_path)?;
        Ok(())
    }

    /// Applies resource restrictions to the cgroup
    fn apply(controller_opt: &ControllerOpt, cgroup_root: &Path) -> Result<(), Self::Error>;

    /// Checks if the controller needs to handle this request
    fn needs_to_handle<'a>(controller_opt: &'a ControllerOpt) -> Option<&'a Self::Resource>;
}

/// CWASI: libcontainer moves the process itself, which it has just forked and which has one thread. The kernel moves a
/// calling thread at once; moving a whole process waits for a grace period of RCU (6 to 20 ms).
pub(super) fn move_task(pid: Pid, cgroup_path: &Path) -> Result<(), WrappedIoError> {
    if pid == Pid::this() {
        return common::write_cgroup_file(cgroup_path.join(TASKS), CALLING_THREAD);
    }
    common::write_cgroup_file(cgroup_path.join(CGROUP_PROCS), pid)
}
