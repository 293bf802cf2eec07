//! The request that a worker has in flight: one that init assigned, or a direct request that the worker read itself.
//! Runs in sandbox init.

use crate::work::Work;
use crate::worker_table::{Phase, SlotState, WorkerSlot};
use cwasi_modes::local::{CallKey, ConnectionId};
use cwasi_sys::clock::Deadline;

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    pub turn: SlotState,
    /// Init kills the worker at this moment.
    pub deadline: Deadline,
    /// `Assigned` or `Begun`.
    pub activity: WorkerActivity,
}

/// What a worker is doing, or was doing when it ended.
#[derive(Debug)]
pub enum WorkerActivity {
    /// No request.
    Nothing,
    /// Work that init assigned and that the worker has not begun: init can assign it to another worker.
    Assigned {
        work: Work,
        /// How many of its calls the worker's socket had room for.
        sent: usize,
    },
    /// A request with these callers.
    Begun(Vec<CallKey>),
    /// It was reading from this connection, and may or may not have taken a request from it.
    Reading(ConnectionId),
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
        let (turn, call, said) = slot.running_request()?;
        let deadline = latest.map_or(said, |latest| latest.min(said));
        Some(Self { turn, deadline, activity: WorkerActivity::Begun(vec![call]) })
    }

    /// The same turn in this phase; `None` when it is over.
    fn advance(self, phase: Phase) -> Option<Self> {
        let activity = match (phase, self.activity) {
            (Phase::Running | Phase::Expired, WorkerActivity::Assigned { work, .. }) => {
                WorkerActivity::Begun(work.keys().collect())
            }
            (Phase::Assigned | Phase::Running | Phase::Expired, known) => known,
            _ => return None,
        };
        Some(Self { activity, ..self })
    }

    /// True when calls of it are to be sent to the worker.
    pub fn has_unsent(&self) -> bool {
        matches!(&self.activity, WorkerActivity::Assigned { work, sent }
            if work.calls().nth(*sent).is_some())
    }
}

/// A worker that has ended.
#[derive(Debug)]
pub struct LostWorker {
    /// The last state of its slot.
    pub state: SlotState,
    /// What it was doing.
    pub activity: WorkerActivity,
}
