//! `Kill`: a signal to a task's init, to all its processes, or to one of them.

use containerd_shim::api::{Empty, KillRequest};
use cwasi_sys::pidfd::PidFd;

use super::blocking::blocking;
use super::container::Status;
use super::error::TaskError;
use super::table::Tasks;
use crate::cgroups;

/// Highest signal number.
const SIGNAL_MAX: u32 = 64;

impl Tasks {
    /// Sends a signal to the task's init, or to all its processes.
    ///
    /// # Errors
    /// [`TaskError::Ended`] when it has ended.
    pub async fn kill(&self, request: &KillRequest) -> Result<Empty, TaskError> {
        let deadly = [libc::SIGTERM, libc::SIGKILL].map(libc::c_int::unsigned_abs);
        let creating = request.exec_id.is_empty() && deadly.contains(&request.signal);
        if creating && self.cancel_creation(&request.id).await {
            tracing::info!(container = request.id, "killed while it was being created");
            if matches!(self.find(&request.id), Err(TaskError::NotFound { .. })) {
                return Ok(Empty::new());
            }
        }
        let signal = i32::try_from(request.signal).ok();
        let Some(signal) = signal.filter(|_| (1..=SIGNAL_MAX).contains(&request.signal)) else {
            let problem = format!("no signal {}", request.signal);
            return Err(TaskError::Invalid { id: request.id.clone(), problem });
        };
        if !request.exec_id.is_empty() {
            self.find_exec(&request.id, &request.exec_id)?.1.signal(signal)?;
            return Ok(Empty::new());
        }
        let container = self.find(&request.id)?;
        container.signal(signal)?;
        let frozen = container.status() == Status::Paused && signal == libc::SIGKILL;
        if request.all || frozen {
            let (directories, own, all) =
                (container.record.cgroups.clone(), container.pid, request.all);
            let killing = move || {
                let others = cgroups::processes(&directories).into_iter();
                for pid in others.filter(|pid| all && *pid != own) {
                    // A process that ended since is not found, and new ones get
                    // other numbers long before this one comes round again.
                    let _gone = PidFd::open(pid).and_then(|it| it.signal(signal));
                }
                if frozen {
                    cgroups::thaw(&directories);
                }
                Ok(())
            };
            blocking(&container.id, killing).await?;
        }
        Ok(Empty::new())
    }
}
