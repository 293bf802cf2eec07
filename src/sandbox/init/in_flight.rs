//! The request that a worker has in flight: one that init assigned, or a direct request that the worker read itself.
//! Runs in sandbox init.

use std::collections::VecDeque;

use crate::modes::Payload;
use crate::modes::local::ConnectionId;
use crate::sandbox::worker_table::{Phase, RunningRequest, SlotState, WorkerSlot};
use crate::sys::clock::Deadline;
use crate::wire::envelope::Undelivered;
use crate::wire::ids::CallId;

use super::handover::PendingPart;
use super::queue::QueueEntry;
use super::signals::Ending;
use super::work::Work;

/// Work that init assigned to a worker.
#[derive(Debug)]
pub struct AssignedWork {
    /// The work, with its payloads until the worker begins.
    pub work: Work,
    /// Parts of its group that the worker's socket had no room for.
    pub unsent: VecDeque<PendingPart>,
    /// Init kills the worker at this moment.
    pub deadline: Deadline,
    /// The worker has begun. Until then init can assign the work to another one.
    pub begun: bool,
    /// The worker's turn.
    pub turn: SlotState,
}

impl AssignedWork {
    /// Records what the worker's slot shows. Returns false when the worker has ended this turn.
    pub fn update(&mut self, state: SlotState) -> bool {
        if !state.same_turn(self.turn) {
            return false;
        }
        if state.phase() == Phase::Running && !std::mem::replace(&mut self.begun, true) {
            self.work.drop_payloads();
        }
        matches!(state.phase(), Phase::Assigned | Phase::Running | Phase::Expired)
    }
}

/// What a worker was doing when it ended.
#[derive(Debug)]
pub enum WorkerActivity {
    /// No request.
    Nothing,
    /// Work that init assigned, and that it had not begun.
    NotBegun(QueueEntry<Work>),
    /// Work that init assigned.
    Assigned(AssignedWork),
    /// A request that it read itself.
    Direct(RunningRequest),
    /// It was reading from this connection, and may or may not have taken a request from it.
    Reading(ConnectionId),
}

impl WorkerActivity {
    /// The activity of the worker of `slot`; `running` is its last assignment.
    pub fn of(running: Option<AssignedWork>, slot: WorkerSlot<'_>) -> Self {
        let state = slot.state();
        if let Some(mut running) = running
            && running.update(state)
        {
            return match state.phase() {
                Phase::Assigned => Self::not_begun(running),
                _ => Self::Assigned(running),
            };
        }
        match slot.running_request() {
            Some((_, request)) => Self::Direct(request),
            None if slot.state().phase() == Phase::Reading => Self::Reading(slot.connection()),
            None => Self::Nothing,
        }
    }

    /// Of a worker that cannot begin its assignment any more.
    pub fn not_begun(assigned: AssignedWork) -> Self {
        Self::NotBegun(QueueEntry { deadline: assigned.deadline, item: assigned.work })
    }

    /// The call that it had begun.
    pub fn call(&self) -> Option<CallId> {
        match self {
            Self::Assigned(assigned) => Some(assigned.work.first().id),
            Self::Direct(request) => Some(request.id),
            Self::Nothing | Self::NotBegun(_) | Self::Reading(_) => None,
        }
    }
}

/// A worker that has ended.
#[derive(Debug)]
pub struct LostWorker {
    /// How it ended.
    pub ending: Ending,
    /// What it was doing.
    pub activity: WorkerActivity,
    /// The deadline of its request has passed, and init has killed it for that.
    pub expired: bool,
    /// It had not made its first instance.
    pub starting: bool,
    /// Answers that it handed over because their callers had no room.
    pub undelivered: Vec<(Undelivered, Payload)>,
}
