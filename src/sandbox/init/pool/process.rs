//! One worker of the pool, as sandbox init sees it: its process, its socket, and the request that it has in flight.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::modes::Payload;
use crate::modes::local::{open_frame, send_frame};
use crate::sandbox::init::in_flight::AssignedWork;
use crate::sandbox::messages::{WorkerMessage, is_frame};
use crate::sandbox::worker_table::{Phase, SlotState, WorkerSlot};
use crate::sys::clock::Deadline;
use crate::sys::seqpacket;
use crate::wire::control;
use crate::wire::envelope::{self, Undelivered};

/// See the file's head.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) pid: Pid,
    pub(super) socket: OwnedFd,
    /// A signal stopped it; it does nothing until another one continues it.
    pub(super) stopped: bool,
    /// Its assignment, until it reports the end.
    pub(super) running: Option<AssignedWork>,
    /// Its direct request, and the deadline that its slot showed first.
    pub(super) taken: Option<(SlotState, Deadline)>,
}

impl WorkerProcess {
    /// A process that was just forked.
    pub(super) const fn new(pid: Pid, socket: OwnedFd) -> Self {
        Self { pid, socket, stopped: false, running: None, taken: None }
    }

    /// Records what its slot shows about its assignment.
    pub(super) fn note_assigned(&mut self, slot: WorkerSlot<'_>) {
        let state = slot.state();
        self.running.take_if(|running| !running.update(state));
    }

    /// Records the direct request that its slot shows. Later changes of the deadline in the slot have no effect.
    pub(super) fn note_taken(&mut self, slot: WorkerSlot<'_>, latest: Option<Deadline>) {
        let took = slot.running_request().filter(|(state, _)| state.phase() == Phase::Running);
        let took = took.filter(|_| self.running.is_none());
        self.taken = took.map(|(turn, took)| match self.taken {
            Some((noted, deadline)) if noted == turn => (turn, deadline),
            _ => (turn, latest.map_or(took.deadline, |latest| latest.min(took.deadline))),
        });
    }

    /// True when it would begin an assignment at once, or as soon as its instance is made.
    pub(super) const fn can_begin(&self, state: SlotState) -> bool {
        !self.stopped && self.running.is_none() && state.is_free()
    }

    /// Wakes it while it waits for init, or is a follower.
    pub(super) fn wake(&self) {
        let nothing = envelope::SharedConnection::default();
        // One without room for it has other messages to be woken by; one that is gone is noticed by its exit.
        let _unsent = send_frame(self.socket.as_fd(), &nothing, b"", &[], Some(Deadline::PASSED));
    }

    /// Kills it; its exit follows.
    pub(super) fn kill(&self) {
        let _gone = kill(self.pid, Signal::SIGKILL);
    }

    /// Reads what it says.
    pub(super) fn read(&self, buffer: &mut [u8]) -> WorkerReport {
        let mut said = WorkerReport::default();
        // An ended worker is noticed by its exit, not by its socket.
        while let Ok(Some(received)) = seqpacket::try_receive(self.socket.as_fd(), buffer) {
            // Cannot fail unless the guest broke out of the worker.
            if said.take(&buffer[..received.len], received.descriptors).is_err() {
                self.kill();
            }
        }
        said
    }
}

/// The messages that were read from a worker.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// It could not make its first instance.
    pub failed: Option<String>,
    /// Answers for which their callers have no room.
    pub undelivered: Vec<(Undelivered, Payload)>,
    /// Why it makes new instances for each request.
    pub(super) not_renewed: Option<String>,
}

/// A message that no worker of ours sends.
struct MalformedMessage;

impl WorkerReport {
    fn take(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), MalformedMessage> {
        if is_frame(message) {
            let opened =
                open_frame(message, descriptors, 0, u64::MAX).map_err(|_| MalformedMessage)?;
            self.undelivered.push((opened.envelope, opened.payload));
            return Ok(());
        }
        match control::decode(message).map_err(|_| MalformedMessage)? {
            // They wake init, which reads the worker's slot.
            WorkerMessage::Ready | WorkerMessage::Done | WorkerMessage::Took => {}
            WorkerMessage::StartFailed { message } => self.failed = Some(message),
            WorkerMessage::NotRenewed { message } => self.not_renewed = Some(message),
        }
        Ok(())
    }
}
