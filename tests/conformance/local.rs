//! Local buffer under the suite: the real receiver on a real socket, served by a thread.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cwasi_dispatcher::{Resolve, ResolvedRoute, Route, RouteQuery};
use cwasi_modes::causes::Unreached;
use cwasi_modes::local::{LocalRoute, send_as_is};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::control::EdgeReport;
use cwasi_wire::envelope::Hello;

use crate::MAX_PAYLOAD;
use crate::callee::{Callee, identity};
use crate::dispatched::{Reachable, Waiting, dispatcher};

/// The callee's receiver in a thread of this process.
pub struct Local {
    callee: Callee,
}

impl Reachable for Local {
    type Resolver = ToReceiver;

    fn start() -> Self {
        Self { callee: Callee::start() }
    }

    fn resolver(&self) -> ToReceiver {
        ToReceiver { socket: self.callee.socket(), says: false, believes: false }
    }

    fn kill(&mut self) {
        self.callee.kill();
    }
}

/// The same within one trust group: large payloads are lent both ways.
pub struct Lending {
    callee: Callee,
}

impl Reachable for Lending {
    type Resolver = ToReceiver;

    fn start() -> Self {
        Self { callee: Callee::start() }
    }

    fn resolver(&self) -> ToReceiver {
        ToReceiver { socket: self.callee.socket(), says: true, believes: true }
    }

    fn kill(&mut self) {
        self.callee.kill();
    }

    fn pool() -> Option<SegmentPool> {
        Some(SegmentPool::new(2 * MAX_PAYLOAD))
    }
}

/// Connects to a receiver, as a shim does.
pub struct ToReceiver {
    socket: PathBuf,
    /// What the callee is told about lending.
    says: bool,
    /// What the caller is told about it.
    believes: bool,
}

impl Resolve for ToReceiver {
    fn resolve(
        &mut self,
        question: &RouteQuery<'_>,
        _: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError> {
        if !question.held.is_empty() {
            return Ok(ResolvedRoute { route: None, instances: 1 });
        }
        let connection = seqpacket::connect_to(&self.socket).map_err(|error| {
            let target = question.target.to_owned();
            let cause = Unreached::Unsent { error: error.to_string() };
            CallError::Unreachable { target, cause }
        })?;
        let hello = Hello::of(&identity("caller"), "", "1").lending(self.says);
        send_as_is(connection.as_fd(), &hello, OutgoingPayload::EMPTY, &[], None).unwrap();
        let (instance, lends) = ("1".to_owned(), self.believes);
        let local = LocalRoute { instance, connection, max_request: MAX_PAYLOAD, lends };
        let route = Route::Local { local, reason: String::new(), nearest: true };
        Ok(ResolvedRoute { route: Some(route), instances: 1 })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
}

crate::apart_conformance!(Waiting<Local>);

mod lending {
    use super::*;

    crate::apart_conformance!(Waiting<Lending>);

    #[test]
    fn a_lease_is_the_callers_again_after_the_call() {
        let fixture = Lending::start();
        let pool = SegmentPool::new(MAX_PAYLOAD);
        let mut caller = dispatcher(fixture.resolver()).lending(Some(pool.clone()));
        let payload = [b'e'; 100_000];
        let mut calls = || {
            for _ in 0..50 {
                let answer = caller.call("callee", OutgoingPayload::Bytes(&payload), None).unwrap();
                let Payload::Segment(answer) = answer else { panic!("inline") };
                assert!(answer.token().is_some() && answer.to_vec().unwrap() == payload);
            }
            pool.bytes()
        };
        // The callee may let go of one while the next is made. More are in use where another test starts a process,
        // which has them for a moment too: then once more.
        let end = Instant::now() + Duration::from_secs(30);
        while calls() > 4 * (128 << 10) {
            assert!(Instant::now() < end, "{} bytes for one call at a time", pool.bytes());
            pool.trim();
        }
    }

    #[test]
    fn lent_segments_are_not_shared() {
        let fixture = Local::start();
        let pool = SegmentPool::new(MAX_PAYLOAD);
        let lent = pool.copy_of(&[b'e'; 100_000]).unwrap();
        let mut outsider = dispatcher(fixture.resolver()).lending(Some(pool));
        let answer = outsider.call("callee", OutgoingPayload::Segment(&lent), None).unwrap();
        let Payload::Segment(answer) = answer else { panic!("inline") };
        assert!(answer.token().is_none() && answer.to_vec().unwrap() == [b'e'; 100_000]);
    }

    #[test]
    fn a_lease_from_outside_the_group_ends_the_connection() {
        let fixture = Lending::start();
        let call = |says, believes| {
            let resolver = ToReceiver { says, believes, ..fixture.resolver() };
            let mut caller = dispatcher(resolver).lending(Lending::pool());
            caller.call("callee", OutgoingPayload::Bytes(&[b'e'; 100_000]), None)
        };
        let liar = call(false, true);
        assert!(matches!(liar, Err(CallError::Broken { .. })), "{liar:?}");
        let misled = call(true, false);
        assert!(matches!(misled, Err(CallError::Internal { .. })), "{misled:?}");
    }
}

#[test]
fn nothing_leaks() {
    crate::in_a_process_of_its_own(
        "local::nothing_leaks",
        crate::suite::nothing_leaks::<Waiting<Local>>,
    );
}

mod in_flight {
    use super::Local;

    crate::fan_conformance!(Local);

    #[test]
    fn nothing_leaks() {
        let case = crate::fan::nothing_leaks_from_calls_in_flight::<Local>;
        crate::in_a_process_of_its_own("local::in_flight::nothing_leaks", case);
    }
}
