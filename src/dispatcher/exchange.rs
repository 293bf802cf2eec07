//! Requests and answers over a worker's connections: what calls that wait and calls in flight share.
//!
//! Answers come in any order. Whoever waits for one takes in what comes before it: an answer to a call in flight
//! is kept for that call, one to a call that was given up is dropped.

use crate::modes::local::{Heard, LocalMode};
use crate::modes::{Call, CallError, Payload};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::Deadline;

use super::call::{ATTEMPTS_MAX, Dispatcher, Question, Resolve, Resolved, keeps_route};
use super::edges::Ended;
use super::flights::{Flight, State, Ticket};
use super::links::{LinkId, Pick};

/// How long after its deadline a call waits for the callee to say why it is late, in nanoseconds.
const REASON_WAIT_NS: u64 = 50_000_000;
/// Most answers that are taken from one connection before the others have their turn.
const MESSAGES_PER_TURN: usize = cwasi_abi::CALLS_IN_FLIGHT_MAX;

impl<R: Resolve> Dispatcher<R> {
    /// The connection that a call of `target` takes: one to the caller's own group if that has an instance, and one
    /// without calls out if there is an instance for it.
    pub(super) fn link(
        &mut self,
        target: &str,
        avoid: &[String],
        deadline: Deadline,
    ) -> Result<LinkId, CallError> {
        let (spare, held, nearer) = match self.links.pick(target) {
            Pick::Take(link) => return Ok(link),
            Pick::Busy(link) => (Some(link), self.links.held(target), false),
            Pick::Far(link) => (Some(link), self.links.held(target), true),
            Pick::Unknown => (None, Vec::new(), false),
        };
        let question = Question { target, avoid, held: &held, nearer };
        match (self.resolver.resolve(&question, deadline), spare) {
            (Ok(Resolved { route: Some(route), instances }), _) => {
                Ok(self.links.add(target, route, instances))
            }
            // No other instance, or none that takes a connection: these serve for a while.
            (_, Some(spare)) => {
                if nearer {
                    self.links.looked(target);
                } else {
                    self.links.count(target, held.len());
                }
                Ok(spare)
            }
            (Err(error), None) => Err(error),
            (Ok(Resolved { route: None, .. }), None) => {
                Err(CallError::Internal { message: format!("{target} was resolved to no route") })
            }
        }
    }

    /// Sends a call and waits for its end.
    pub(super) fn exchange(&mut self, link: LinkId, call: &Call<'_>) -> Result<Payload, CallError> {
        self.send(link, call)?;
        self.links.sent(link);
        let mut until = call.deadline;
        let ended = loop {
            let Some(route) = self.links.route(link) else { break Err(closed(call.target)) };
            match self.local.receive(route.connection(), call.target, until) {
                Ok(Some(heard)) if heard.id == call.id => break heard.ended,
                Ok(Some(heard)) => self.heard(link, heard),
                // The callee's init has the same deadline, and may know why it passed.
                Ok(None) if until == call.deadline => {
                    until = until.map(|deadline| deadline.saturating_add(REASON_WAIT_NS));
                }
                Ok(None) => break Err(timeout(call.target)),
                Err(error) => {
                    self.lose(link, &error);
                    return Err(error);
                }
            }
        };
        self.links.done(link);
        ended
    }

    /// Sends a request. While it waits for room it takes in answers: the callee may wait for room for these.
    pub(super) fn send(&mut self, link: LinkId, call: &Call<'_>) -> Result<(), CallError> {
        loop {
            let Some(route) = self.links.route(link) else {
                let message = "its connection closed before the request was sent".to_owned();
                return Err(CallError::Unreachable { target: call.target.to_owned(), message });
            };
            match self.local.send(route.connection(), call, Some(0)) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    if matches!(error, CallError::Unreachable { .. }) {
                        self.lose(link, &closed(call.target));
                    }
                    return Err(error);
                }
            }
            if call.deadline.is_some_and(|deadline| deadline <= monotonic_ns()) {
                return Err(timeout(call.target));
            }
            self.listen(call.deadline, Some(link))?;
        }
    }

    /// Waits until `until` for answers to calls in flight, or for room on `room`, and takes in what came. False when
    /// there was no answer.
    pub(super) fn listen(
        &mut self,
        until: Deadline,
        room: Option<LinkId>,
    ) -> Result<bool, CallError> {
        let (links, routes): (Vec<_>, Vec<_>) = self.links.busy().into_iter().unzip();
        let room = room.and_then(|link| self.links.route(link)).map(|route| route.connection());
        let ready = LocalMode::wait(&routes, room, until)?;
        for index in &ready {
            self.take_in(links[*index]);
        }
        Ok(!ready.is_empty())
    }

    /// Takes in every answer that waits on a connection.
    fn take_in(&mut self, link: LinkId) {
        if let Err(error) = self.take_answers(link) {
            self.lose(link, &error);
            self.links.retire(link);
        }
    }

    fn take_answers(&mut self, link: LinkId) -> Result<(), CallError> {
        let Some(target) = self.links.target(link) else { return Ok(()) };
        for _ in 0..MESSAGES_PER_TURN {
            let Some(route) = self.links.route(link) else { return Ok(()) };
            match self.local.receive(route.connection(), &target, Some(0))? {
                Some(heard) => self.heard(link, heard),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// An answer came; what it belongs to may have been given up.
    fn heard(&mut self, link: LinkId, heard: Heard) {
        let Some(ticket) = self.flights.answered(heard.id, link) else { return };
        let mut again = false;
        if let Err(error) = &heard.ended
            && let Some(flight) = self.flights.get_mut(ticket)
        {
            if !keeps_route(error) {
                flight.avoid.extend(self.links.retire(link));
            }
            again = error.not_accepted() && !flight.forgotten && flight.attempt < ATTEMPTS_MAX;
            flight.attempt += u32::from(again);
        }
        self.links.done(link);
        if again {
            self.flights.again(ticket);
        } else {
            self.end_flight(ticket, heard.ended);
        }
    }

    /// A connection is of no use any more. What its callee answered before counts; the other calls that are out on
    /// it have ended, and nobody knows whether they ran.
    fn lose(&mut self, link: LinkId, error: &CallError) {
        // It has failed already: why it fails again does not matter.
        let _failed = self.take_answers(link);
        for ticket in self.flights.out_on(link) {
            self.end_flight(ticket, Err(error.clone()));
        }
        self.links.lost(link);
    }

    /// A call in flight is over.
    pub(super) fn end_flight(&mut self, ticket: Ticket, ended: Result<Payload, CallError>) {
        if let Some(flight) = self.flights.get(ticket) {
            self.edges.count(counted(flight, ended.as_ref().ok().map(Payload::len)));
        }
        self.flights.end(ticket, ended);
    }

    /// A call in flight ends without its answer: it is not waited for any more.
    pub(super) fn give_up(&mut self, ticket: Ticket, error: CallError) {
        if let Some(State::Out(link)) = self.flights.get(ticket).map(|flight| &flight.state) {
            self.links.done(*link);
        }
        self.end_flight(ticket, Err(error));
    }
}

/// A call in flight as its edge counts it.
pub(super) fn counted(flight: &Flight, response_bytes: Option<u64>) -> Ended<'_> {
    let served = flight.served.as_ref();
    Ended {
        module: None,
        callee: &flight.target,
        mode: served.map(|(mode, _)| *mode),
        reason: served.map_or("", |(_, reason)| reason),
        request_bytes: flight.request_bytes,
        response_bytes,
        latency: flight.started.elapsed(),
    }
}

pub(super) fn timeout(target: &str) -> CallError {
    CallError::Timeout { target: target.to_owned() }
}

fn closed(target: &str) -> CallError {
    let message = "its connection closed before the answer".to_owned();
    CallError::Broken { target: target.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::time::Duration;

    use super::super::links::Route;
    use super::*;
    use crate::dispatcher::Settings;
    use crate::modes::Outgoing;
    use crate::modes::local::{LocalRoute, receive_frame, respond};
    use crate::sys::seqpacket;
    use crate::wire::control::EdgeReport;
    use crate::wire::envelope::Request;
    use crate::wire::frame::FRAME_MAX;

    struct Only(Option<Route>);

    impl Resolve for Only {
        fn resolve(&mut self, _: &Question<'_>, _: Deadline) -> Result<Resolved, CallError> {
            Ok(Resolved { route: self.0.take(), instances: 1 })
        }

        fn report(&mut self, _: Vec<EdgeReport>) {}
    }

    fn dispatcher(connection: OwnedFd) -> Dispatcher<Only> {
        let local = LocalRoute { instance: "i".into(), connection, max_request: 64, lends: false };
        let route = Route::Local { local, reason: String::new(), nearest: true };
        let settings = Settings { caller: "caller".into(), max_payload: 64, timeout_ms: 60_000 };
        Dispatcher::new(settings, Only(Some(route)))
    }

    /// How a call ends whose callee answers when its deadline has passed.
    fn call_answered_late(why: &str) -> Result<Payload, CallError> {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let deadline = monotonic_ns() + 20_000_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; FRAME_MAX];
                let opened = receive_frame::<Request>(&theirs, &mut buffer, 64, None).unwrap();
                while monotonic_ns() <= deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let answer = Err(CallError::Late { message: why.to_owned() });
                let id = opened.envelope.id().unwrap();
                // The caller may have gone.
                drop(respond(theirs.as_fd(), id, &answer, Some(0)));
            });
            dispatcher(ours).call("callee", Outgoing::Bytes(b"x"), Some(deadline))
        })
    }

    #[test]
    fn a_callee_may_still_say_why_it_is_late() {
        // A reason may end as the text of a plain timeout does.
        let why = "1 of 2 parts; the other did not end before its deadline";
        // On a busy machine the reason may be late, too.
        let told = (0..50).any(|_| match call_answered_late(why) {
            Err(CallError::Late { message }) => message == why,
            Err(CallError::Timeout { .. }) => false,
            other => panic!("{other:?}"),
        });
        assert!(told);
    }
}
