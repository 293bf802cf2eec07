//! The state that a function's process inherits from its builder, inside the container. Sandbox init owns it; the
//! workers that init forks use their copy.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cwasi_sys::clock::Deadline;
use cwasi_sys::process::SingleThreaded;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{self, FunctionLaunch, SandboxMessage};

use super::host_paths::HostPaths;
use super::{exit_codes, stderr};

/// How long init waits for its shim to take a message.
const SHIM_WAIT: Duration = Duration::from_secs(5);

/// A function's process, before it runs: inside the container, all descriptors but these closed.
#[derive(Debug)]
pub struct Sandbox<M> {
    pub launch: FunctionLaunch,
    pub module: M,
    pub threads: SingleThreaded,
    /// Socket to the shim.
    pub broker: OwnedFd,
    /// Listening receiver; secondaries only.
    pub receiver: Option<OwnedFd>,
    /// Its directories, outside of a container.
    pub host_paths: HostPaths,
    /// Most private bytes of a worker, known when the code is loaded; `None` = as many as there are.
    pub memory_ceiling: Option<u64>,
}

impl<M> Sandbox<M> {
    /// Sends a message to the shim; waits a little for room.
    pub fn send(&self, message: &SandboxMessage) {
        let deadline = Some(Deadline::after(SHIM_WAIT));
        let bytes = control::encode(message);
        if let Err(error) = seqpacket::send(self.broker.as_fd(), &[&bytes], &[], deadline) {
            stderr::try_line(&format!(
                "the shim of {} cannot be told: {error}",
                self.launch.identity
            ));
        }
    }

    /// Sends a message to the shim, if it takes it at once; returns whether it did.
    #[must_use]
    pub fn try_send(&self, message: &SandboxMessage) -> bool {
        let bytes = control::encode(message);
        seqpacket::send(self.broker.as_fd(), &[&bytes], &[], Some(Deadline::PASSED)).is_ok()
    }

    /// Reports to the shim that there will be no workload; returns the exit code.
    pub fn start_failed(&self, message: &str) -> i32 {
        self.send(&SandboxMessage::StartFailed { message: message.to_owned() });
        exit_codes::START_FAILED
    }
}
