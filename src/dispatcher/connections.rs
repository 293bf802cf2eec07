//! Sends requests and receives answers over a worker's connections. Runs in a worker.
//!
//! Answers come in any order, also while a request waits for room at its callee. They wait here until the dispatcher
//! takes them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::{LocalMode, ReceivedAnswer};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, ModeKind, OutgoingCall, OutgoingPayload};
use cwasi_sys::clock::{Deadline, monotonic_ns};

use super::instances::Pick;
use super::links::{LinkId, Links};
use super::resolve::{Resolve, ResolvedRoute, RouteQuery};

/// Pauses between two tries to send while this user's processes have too many descriptors in flight.
const DESCRIPTORS_PAUSE_MIN: Duration = Duration::from_millis(1);
const DESCRIPTORS_PAUSE_MAX: Duration = Duration::from_millis(64);
/// Most answers from one connection before other connections have their turn.
const MESSAGES_PER_TURN: usize = cwasi_abi::CALLS_IN_FLIGHT_MAX;

/// News of the calls in flight.
#[derive(Debug)]
pub(super) enum Arrival {
    /// An answer; its call may have been given up.
    Answer(LinkId, ReceivedAnswer),
    /// The connection is lost: the calls over it end with this error, after the answers that came before.
    Lost(LinkId, CallError),
}

/// A worker's connections, and what came over them.
#[derive(Debug)]
pub(super) struct Connections {
    links: Links,
    pub local: LocalMode,
    arrivals: VecDeque<Arrival>,
}

impl Connections {
    /// No connections; responses of at most `max_response` bytes are taken.
    pub fn new(max_response: u64) -> Self {
        let (links, local) = (Links::default(), LocalMode::new(max_response));
        Self { links, local, arrivals: VecDeque::new() }
    }

    /// The mode of a connection and its reason.
    pub fn mode(&self, link: LinkId) -> Option<(ModeKind, Rc<str>)> {
        self.links.mode(link)
    }

    /// Records the end of a sent call.
    pub fn done(&mut self, link: LinkId) {
        self.links.done(link);
    }

    /// Takes no further calls for this connection, and closes it after the last call. Returns its instance if known.
    pub fn retire(&mut self, link: LinkId) -> Option<String> {
        self.links.retire(link)
    }

    /// Closes all connections with calls in flight.
    pub fn close_busy(&mut self) {
        self.links.close_busy();
    }

    /// The pool whose segments may be lent to every connected instance of `target`.
    pub fn lender(&self, target: &str) -> Option<&SegmentPool> {
        self.local.pool.as_ref().filter(|_| self.links.lends(target))
    }

    /// The connection for a call of `target`: one to the caller's own group if that has an instance, and an idle one
    /// if there is an idle instance.
    pub fn connect(
        &mut self,
        resolver: &mut impl Resolve,
        target: &str,
        avoid: &[String],
        deadline: Option<Deadline>,
    ) -> Result<LinkId, CallError> {
        let (fallback, nearer) = match self.links.pick(target, Instant::now()) {
            Pick::Take(link) => return Ok(link),
            Pick::AskFirst { fallback, nearer } => (Some(fallback), nearer),
            Pick::Ask => (None, false),
        };
        let held = fallback.map(|_| self.links.instances(target)).unwrap_or_default();
        let query = RouteQuery { target, avoid, held: &held, nearer };
        let resolved = resolver.resolve(&query, deadline);
        let now = Instant::now();
        match (resolved, fallback) {
            (Ok(ResolvedRoute { route: Some(route), instances }), _) => {
                Ok(self.links.add(target, route, instances, now))
            }
            // No other instance, or none that accepts a connection: use the known ones for a while.
            (_, Some(fallback)) => {
                if nearer {
                    self.links.set_none_nearer(target, now);
                } else {
                    self.links.set_count(target, held.len(), now);
                }
                Ok(fallback)
            }
            (Err(error), None) => Err(error),
            (Ok(ResolvedRoute { route: None, .. }), None) => Err(CallError::Internal {
                message: format!("the shim returned no route to {target}"),
            }),
        }
    }

    /// Sends a request. Receives answers while it waits for room, because the callee may wait for room for them.
    pub fn send(&mut self, link: LinkId, call: &OutgoingCall<'_>) -> Result<(), CallError> {
        let route = self.links.route(link).ok_or_else(|| unreachable(call.target))?;
        let copy = self.local.copy(route.connection(), call)?;
        let payload = copy.as_ref().map_or(call.payload, OutgoingPayload::from);
        let mut pause = DESCRIPTORS_PAUSE_MIN;
        loop {
            let Some(route) = self.links.route(link) else { return Err(unreachable(call.target)) };
            let route = route.connection();
            let is_out_of_descriptors =
                match self.local.send(route, call, payload, Some(Deadline::PASSED)) {
                    Ok(true) => {
                        self.links.sent(link);
                        return Ok(());
                    }
                    Ok(false) => LocalMode::is_out_of_descriptors(route, payload),
                    Err(error) => {
                        if matches!(error, CallError::Unreachable { .. }) {
                            self.lose(link, closed(call.target));
                        }
                        return Err(error);
                    }
                };
            if call.deadline.is_some_and(|deadline| deadline.has_passed(monotonic_ns())) {
                return Err(CallError::Timeout { target: call.target.to_owned() });
            }
            if is_out_of_descriptors {
                let until = Deadline::after(pause);
                let until = call.deadline.map_or(until, |deadline| deadline.min(until));
                self.poll(Some(until), None)?;
                pause = DESCRIPTORS_PAUSE_MAX.min(2 * pause);
            } else {
                self.poll(call.deadline, Some(link))?;
            }
        }
    }

    /// Waits until `until` for answers. False if there was none.
    pub fn receive(&mut self, until: Option<Deadline>) -> Result<bool, CallError> {
        match self.links.only_busy() {
            Some((link, in_flight)) => Ok(self.receive_from(link, in_flight, until)),
            None => self.poll(until, None),
        }
    }

    /// What came and was not taken yet, oldest first.
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Waits for the only connection with calls in flight, without asking the kernel which one is readable.
    fn receive_from(&mut self, link: LinkId, in_flight: usize, until: Option<Deadline>) -> bool {
        let received = self.take_answers(link, until, 1).and_then(|came| match came {
            true if in_flight > 1 => self.take_waiting_answers(link).map(|()| true),
            came => Ok(came),
        });
        received.unwrap_or_else(|error| {
            self.lose(link, error);
            true
        })
    }

    /// Waits until `until` for answers on any connection, or for room on `room`. False if there was no answer.
    fn poll(&mut self, until: Option<Deadline>, room: Option<LinkId>) -> Result<bool, CallError> {
        let (links, routes): (Vec<_>, Vec<_>) = self.links.busy().unzip();
        let room = room.and_then(|link| self.links.route(link)).map(|route| route.connection());
        let ready = LocalMode::wait(&routes, room, until)?;
        for index in &ready {
            let link = links[*index];
            if let Err(error) = self.take_waiting_answers(link) {
                self.lose(link, error);
            }
        }
        Ok(!ready.is_empty())
    }

    fn take_waiting_answers(&mut self, link: LinkId) -> Result<(), CallError> {
        self.take_answers(link, Some(Deadline::PASSED), MESSAGES_PER_TURN).map(drop)
    }

    /// Receives at most `limit` answers of a connection, each until `until`. False if there was none.
    fn take_answers(
        &mut self,
        link: LinkId,
        until: Option<Deadline>,
        limit: usize,
    ) -> Result<bool, CallError> {
        for number in 0..limit {
            let Some((route, target)) = self.links.route_and_target(link) else {
                return Ok(number > 0);
            };
            match self.local.receive(route.connection(), target, until)? {
                Some(answer) => self.arrivals.push_back(Arrival::Answer(link, answer)),
                None => return Ok(number > 0),
            }
        }
        Ok(limit > 0)
    }

    /// Handles a lost connection. Answers that came before count.
    fn lose(&mut self, link: LinkId, error: CallError) {
        // The connection has failed already; a second error does not matter.
        let _failed = self.take_waiting_answers(link);
        self.links.lost(link);
        self.arrivals.push_back(Arrival::Lost(link, error));
    }
}

fn unreachable(target: &str) -> CallError {
    CallError::Unreachable { target: target.to_owned(), cause: Unreached::Closed }
}

fn closed(target: &str) -> CallError {
    CallError::Broken { target: target.to_owned(), cause: Break::Closed }
}
