//! The request that a worker has in flight: one that init assigned, or a direct request that the worker read itself.
//! Runs in sandbox init.

use crate::modes::Payload;
use crate::modes::local::{CallKey, ConnectionId};
use crate::sandbox::work::Work;
use crate::sandbox::worker_table::{Phase, SlotState, WorkerSlot};
use crate::sys::clock::Deadline;
use crate::wire::envelope::Undelivered;

use super::signals::Ending;

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    /// The worker's turn.
    pub turn: SlotState,
    /// Init kills the worker at this moment.
    pub deadline: Deadline,
    /// What init keeps of it.
    pub request: RequestInFlight,
}

/// What init keeps of a request in flight.
#[derive(Debug)]
pub enum RequestInFlight {
    /// All of it, because the worker has not begun it: init can assign it to another worker.
    Assigned {
        /// The request.
        work: Work,
        /// How many of its calls the worker's socket had room for.
        sent: usize,
    },
    /// Its callers, because the worker has begun it.
    Begun(Vec<CallKey>),
}

impl InFlight {
    /// The request that the slot shows, of which init knew `before` until now. A direct request keeps the deadline that
    /// the slot showed first, and has at most `latest`.
    pub fn seen(
        before: Option<Self>,
        slot: WorkerSlot<'_>,
        latest: Option<Deadline>,
    ) -> Option<Self> {
        let state = slot.state();
        if let Some(known) = before.filter(|known| known.turn.same_turn(state)) {
            return known.advance(state.phase());
        }
        let (turn, direct) = slot.running_request()?;
        let deadline = latest.map_or(direct.deadline, |latest| latest.min(direct.deadline));
        Some(Self { turn, deadline, request: RequestInFlight::Begun(vec![direct.call]) })
    }

    /// The same turn in this phase; `None` when it is over.
    fn advance(self, phase: Phase) -> Option<Self> {
        let request = match (phase, self.request) {
            (Phase::Assigned, request) => request,
            (Phase::Running | Phase::Expired, RequestInFlight::Assigned { work, .. }) => {
                RequestInFlight::Begun(work.keys().collect())
            }
            (Phase::Running | Phase::Expired, begun) => begun,
            _ => return None,
        };
        Some(Self { request, ..self })
    }

    /// True when its worker has not begun it.
    pub const fn is_assigned(&self) -> bool {
        matches!(self.request, RequestInFlight::Assigned { .. })
    }

    /// True when calls of it are to be sent to the worker.
    pub fn has_unsent(&self) -> bool {
        match &self.request {
            RequestInFlight::Assigned { work, sent } => work.calls().nth(*sent).is_some(),
            RequestInFlight::Begun(_) => false,
        }
    }
}

/// What a worker was doing when it ended.
#[derive(Debug)]
pub enum WorkerActivity {
    /// No request.
    Nothing,
    /// Work that init assigned, and that it had not begun.
    NotBegun(Work),
    /// A request with these callers.
    Begun(Vec<CallKey>),
    /// It was reading from this connection, and may or may not have taken a request from it.
    Reading(ConnectionId),
}

impl WorkerActivity {
    /// The activity of the worker of `slot`, which has this request in flight.
    pub fn of(in_flight: Option<InFlight>, slot: WorkerSlot<'_>) -> Self {
        match in_flight {
            Some(InFlight { request: RequestInFlight::Begun(calls), .. }) => Self::Begun(calls),
            Some(InFlight { request: RequestInFlight::Assigned { work, .. }, .. }) => {
                Self::NotBegun(work)
            }
            None if slot.state().phase() == Phase::Reading => Self::Reading(slot.connection()),
            None => Self::Nothing,
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
