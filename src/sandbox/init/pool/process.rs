//! One worker of the pool, as sandbox init sees it: its process, its socket, and the request that it has in flight.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::modes::Payload;
use crate::modes::local::{LocalError, open_frame, send_frame};
use crate::sandbox::init::handover::send_call;
use crate::sandbox::init::in_flight::{InFlight, RequestInFlight, WorkerActivity};
use crate::sandbox::messages::{WorkerMessage, is_frame};
use crate::sandbox::work::Work;
use crate::sandbox::worker_table::{Phase, WorkerSlot};
use crate::sys::clock::Deadline;
use crate::sys::seqpacket::{self, SocketError};
use crate::wire::control;
use crate::wire::envelope::{self, Undelivered};

/// See the file's head.
#[derive(Debug)]
pub(super) struct WorkerProcess<'t> {
    /// Its slot of the worker table.
    pub(super) slot: WorkerSlot<'t>,
    pub(super) pid: Pid,
    pub(super) socket: OwnedFd,
    /// A signal stopped it; it does nothing until another one continues it.
    pub(super) stopped: bool,
    /// Its request, as far as init has seen it.
    pub(super) in_flight: Option<InFlight>,
}

impl WorkerProcess<'_> {
    /// True when it has made its first instance.
    pub(super) fn has_started(&self) -> bool {
        self.slot.state().has_started()
    }

    /// True when it would begin an assignment at once, or as soon as its instance is made.
    pub(super) fn can_begin(&self) -> bool {
        !self.stopped && self.slot.state().is_free()
    }

    /// True when it will take a request without running another guest first.
    pub(super) fn can_begin_soon(&self) -> bool {
        !self.stopped && self.slot.state().is_free_soon()
    }

    /// Records what its slot shows about its request.
    pub(super) fn look(&mut self, latest: Option<Deadline>) {
        self.in_flight = InFlight::seen(self.in_flight.take(), self.slot, latest);
    }

    /// The deadline of the request that it runs or is to run.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        let (state, in_flight) = (self.slot.state(), self.in_flight.as_ref()?);
        let runs = matches!(state.phase(), Phase::Assigned | Phase::Running);
        (runs && state.same_turn(in_flight.turn)).then_some(in_flight.deadline)
    }

    /// Sends the remaining calls of its group, as far as its socket has room.
    ///
    /// # Errors
    /// As [`WorkerPool::feed`](super::WorkerPool::feed).
    pub(super) fn feed(&mut self) -> Result<(), (Work, LocalError)> {
        let Some(InFlight { turn, deadline, request }) = self.in_flight.take() else {
            return Ok(());
        };
        let request = match request {
            RequestInFlight::Assigned { work, mut sent } => loop {
                match send_call(self.socket.as_fd(), &work, sent) {
                    Ok(true) => sent += 1,
                    // All is sent, or its exit is on the way, or there is no room.
                    Ok(false)
                    | Err(LocalError::Socket(SocketError::Closed | SocketError::Deadline)) => {
                        break RequestInFlight::Assigned { work, sent };
                    }
                    Err(error) => {
                        self.kill();
                        return Err((work, error));
                    }
                }
            },
            begun => begun,
        };
        self.in_flight = Some(InFlight { turn, deadline, request });
        Ok(())
    }

    /// What it was doing when it ended.
    pub(super) fn activity(mut self) -> WorkerActivity {
        self.look(None);
        WorkerActivity::of(self.in_flight, self.slot)
    }

    /// Ends it. Takes its assignment back first, if it has not begun it.
    pub(super) fn end(self) -> WorkerActivity {
        let assigned = self.in_flight.as_ref().filter(|it| it.is_assigned());
        let is_taken_back = assigned.is_some_and(|it| self.slot.unassign(it.turn));
        self.kill();
        if is_taken_back { WorkerActivity::of(self.in_flight, self.slot) } else { self.activity() }
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
            WorkerMessage::Ready | WorkerMessage::Progress => {}
            WorkerMessage::StartFailed { message } => self.failed = Some(message),
            WorkerMessage::NotRenewed { message } => self.not_renewed = Some(message),
        }
        Ok(())
    }
}
