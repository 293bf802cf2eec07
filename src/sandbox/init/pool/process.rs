//! One worker of the pool, as sandbox init sees it: its process, its socket, and the request that it has in flight.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::init::in_flight::{InFlight, WorkerActivity};
use crate::messages::{WorkerMessage, is_frame};
use crate::work::Work;
use crate::worker_table::{Phase, WorkerSlot};
use cwasi_modes::local::{LocalError, open_frame, send_as_is};
use cwasi_modes::{OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control;
use cwasi_wire::envelope::{Assignment, Group, Request, SharedConnection, Undelivered};

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
    /// True when it would begin an assignment at once, or as soon as its instance is made.
    pub(super) fn can_begin(&self) -> bool {
        !self.stopped && self.slot.state().is_free()
    }

    /// True when it will take a request without running another guest first.
    pub(super) fn can_begin_soon(&self) -> bool {
        !self.stopped && self.slot.state().is_free_soon()
    }

    /// Records what its slot shows about its request.
    pub(super) fn update_in_flight(&mut self, latest: Option<Deadline>) {
        self.in_flight = InFlight::seen(self.in_flight.take(), self.slot, latest);
    }

    /// The deadline of the request that it runs or is to run.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        let (state, in_flight) = (self.slot.state(), self.in_flight.as_ref()?);
        let runs = matches!(state.phase(), Phase::Assigned | Phase::Running);
        (runs && state.same_turn(in_flight.turn)).then_some(in_flight.deadline)
    }

    /// Sends the remaining calls of its work, as far as its socket has room.
    ///
    /// # Errors
    /// Gives the work back when a call cannot be sent at all. A worker that waits for that call is killed; one that
    /// got none is free again.
    pub(super) fn send_group(&mut self) -> Result<(), (Work, LocalError)> {
        let Some(InFlight { turn, activity: WorkerActivity::Assigned { work, sent }, .. }) =
            &mut self.in_flight
        else {
            return Ok(());
        };
        let error = loop {
            match send_call(self.socket.as_fd(), work, *sent) {
                Ok(true) => *sent += 1,
                // All is sent, or its exit is on the way.
                Ok(false) | Err(LocalError::Socket(SocketError::Closed)) => return Ok(()),
                Err(LocalError::Socket(SocketError::Deadline)) if *sent > 0 => return Ok(()),
                Err(error) => break error,
            }
        };
        let (turn, waits_for_more) = (*turn, *sent > 0);
        if waits_for_more {
            self.kill();
        } else if self.slot.unassign(turn) {
            self.wake();
        }
        match self.in_flight.take().map(|it| it.activity) {
            Some(WorkerActivity::Assigned { work, .. }) => Err((work, error)),
            _ => Ok(()),
        }
    }

    /// What it was doing when it ended.
    pub(super) fn activity(mut self) -> WorkerActivity {
        self.update_in_flight(None);
        match self.in_flight {
            Some(in_flight) => in_flight.activity,
            None if self.slot.state().phase() == Phase::Reading => {
                WorkerActivity::Reading(self.slot.connection())
            }
            None => WorkerActivity::Nothing,
        }
    }

    /// Ends it. Takes its assignment back first, if it has not begun it.
    pub(super) fn end(mut self) -> WorkerActivity {
        let is_assigned = |it: &InFlight| matches!(it.activity, WorkerActivity::Assigned { .. });
        let slot = self.slot;
        let taken_back = self.in_flight.take_if(|it| is_assigned(it) && slot.unassign(it.turn));
        self.kill();
        taken_back.map_or_else(|| self.activity(), |taken_back| taken_back.activity)
    }

    /// Wakes it while it waits for init, or is a follower.
    pub(super) fn wake(&self) {
        let (nothing, now) = (SharedConnection::default(), Some(Deadline::PASSED));
        // One without room for it has other messages to be woken by; one that is gone is noticed by its exit.
        let _unsent = send_as_is(self.socket.as_fd(), &nothing, OutgoingPayload::EMPTY, &[], now);
    }

    /// Kills it; its exit follows.
    pub(super) fn kill(&self) {
        let _gone = kill(self.pid, Signal::SIGKILL);
    }

    /// Reads what it says.
    pub(super) fn read(&self, buffer: &mut [u8]) -> WorkerReport {
        let said = WorkerReport::read(self.socket.as_fd(), buffer);
        // Cannot be unless the guest broke out of the worker.
        if said.malformed {
            self.kill();
        }
        said
    }
}

/// Sends the call with this index: one frame for each call, and each caller's connection once. Returns false when
/// `work` has no such call.
fn send_call(socket: BorrowedFd<'_>, work: &Work, index: usize) -> Result<bool, LocalError> {
    let Some((number, call)) = work.parts().nth(index) else { return Ok(false) };
    let is_known = work.calls().take(index).any(|sent| sent.connection.id == call.connection.id);
    let descriptors = [call.connection.fd.as_fd()];
    let extra = if is_known { &descriptors[..0] } else { &descriptors[..] };
    let request = match index {
        0 => Request { target: String::new(), ..call.request.clone() },
        _ => Request { call_id: call.id.0.to_vec(), ..Request::default() },
    };
    let group = work.expected.map(|expected| Group {
        expected,
        number: *number,
        following: u32::try_from(work.calls().skip(index + 1).count()).unwrap_or(u32::MAX),
        ..Group::default()
    });
    let assignment = Assignment {
        request: Some(request).into(),
        connection: Some(call.connection.envelope()).into(),
        group: group.into(),
        deadline_mono_ns: work.deadline.as_ns(),
        ..Assignment::default()
    };
    let now = Some(Deadline::PASSED);
    send_as_is(socket, &assignment, call.payload.outgoing(), extra, now).map(|()| true)
}

/// The messages that were read from a worker.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// A primary's worker has its instance.
    pub ready: bool,
    /// It could not make its first instance.
    pub failed: Option<String>,
    /// Answers for which their callers have no room.
    pub undelivered: Vec<(Undelivered, Payload)>,
    /// It closed its end of the socket: its exit follows.
    pub closed: bool,
    /// It sent what no worker of ours sends.
    malformed: bool,
}

impl WorkerReport {
    /// Reads the messages that have arrived on a worker's socket.
    pub fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Self {
        let mut said = Self::default();
        loop {
            match seqpacket::try_receive(socket, buffer) {
                Ok(Some(received)) => said.take(&buffer[..received.len], received.descriptors),
                Ok(None) => return said,
                Err(_closed) => return Self { closed: true, ..said },
            }
        }
    }

    fn take(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) {
        if is_frame(message) {
            match open_frame(message, descriptors, 0, u64::MAX) {
                Ok(opened) => self.undelivered.push((opened.envelope, opened.payload)),
                Err(_) => self.malformed = true,
            }
            return;
        }
        match control::decode(message) {
            // A secondary's wakes init, which reads the worker's slot.
            Ok(WorkerMessage::Progress) => self.ready = true,
            Ok(WorkerMessage::StartFailed { message }) => self.failed = Some(message),
            Err(_) => self.malformed = true,
        }
    }
}
