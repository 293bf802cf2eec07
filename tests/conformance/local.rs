//! Local buffer under the suite: the real receiver on a real socket, served by a thread.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cwasi::dispatcher::{Question, Resolve, Resolved, Route};
use cwasi::modes::local::{LocalMode, LocalRoute, send_frame};
use cwasi::modes::{Call, CallError, Mode, Outgoing, Payload};
use cwasi::sys::pool::SegmentPool;
use cwasi::sys::random::bytes16;
use cwasi::sys::seqpacket::{self, Deadline};
use cwasi::wire::control::EdgeReport;
use cwasi::wire::envelope::Hello;
use cwasi::wire::ids::CallId;

use crate::callee::{Callee, identity};
use crate::fan::Reachable;
use crate::{Bench, Caller, MAX_PAYLOAD};

/// The callee's receiver in a thread of this process.
pub struct Local {
    callee: Callee,
}

impl Bench for Local {
    type Caller = LocalCaller;

    fn start() -> Self {
        Self { callee: Callee::start() }
    }

    fn caller(&self) -> LocalCaller {
        let route = route(&self.callee, false);
        LocalCaller { mode: LocalMode::new(MAX_PAYLOAD), route }
    }

    fn kill(&mut self) {
        self.callee.kill();
    }

    fn can_be_killed() -> bool {
        true
    }
}

impl Reachable for Local {
    type Resolver = ToReceiver;

    fn resolver(&self) -> ToReceiver {
        ToReceiver(self.callee.socket())
    }
}

/// Connects to a receiver, as a shim does.
pub struct ToReceiver(PathBuf);

impl Resolve for ToReceiver {
    fn resolve(&mut self, question: &Question<'_>, _: Deadline) -> Result<Resolved, CallError> {
        if !question.held.is_empty() {
            return Ok(Resolved { route: None, instances: 1 });
        }
        let connection = seqpacket::connect_to(&self.0).map_err(|error| {
            let target = question.target.to_owned();
            CallError::Unreachable { target, message: error.to_string() }
        })?;
        let local = introduced(connection, false);
        let route = Route::Local { local, reason: String::new(), nearest: true };
        Ok(Resolved { route: Some(route), instances: 1 })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
}

/// The same within one trust group: large payloads are lent both ways.
pub struct Lending {
    callee: Callee,
}

impl Bench for Lending {
    type Caller = LocalCaller;

    fn start() -> Self {
        Self { callee: Callee::start() }
    }

    fn caller(&self) -> LocalCaller {
        let route = route(&self.callee, true);
        let pool = SegmentPool::new(2 * MAX_PAYLOAD);
        LocalCaller { mode: LocalMode::new(MAX_PAYLOAD).lending(Some(pool)), route }
    }

    fn kill(&mut self) {
        self.callee.kill();
    }

    fn can_be_killed() -> bool {
        true
    }
}

/// A connection as the shim makes it.
fn route(callee: &Callee, lends: bool) -> LocalRoute {
    introduced(seqpacket::connect_to(&callee.socket()).unwrap(), lends)
}

fn introduced(connection: OwnedFd, lends: bool) -> LocalRoute {
    let hello = Hello::of(&identity("caller"), "", "1").lending(lends);
    send_frame(connection.as_fd(), &hello, b"", &[], None).unwrap();
    LocalRoute { instance: "1".to_owned(), connection, max_request: MAX_PAYLOAD, lends }
}

/// A caller with a connection of its own.
pub struct LocalCaller {
    pub mode: LocalMode,
    pub route: LocalRoute,
}

impl Caller for LocalCaller {
    fn call(&mut self, call: &Call<'_>) -> Result<Payload, CallError> {
        self.mode.call(&mut self.route, call)
    }
}

crate::conformance!(Local);

mod lending {
    use super::*;

    crate::conformance!(Lending);

    fn call(payload: Outgoing<'_>) -> Call<'_> {
        Call {
            id: CallId(bytes16()),
            target: "callee",
            payload,
            deadline: None,
            traceparent: "",
            attempt: 1,
            run: None,
            join: None,
        }
    }

    #[test]
    fn a_lease_is_the_callers_again_after_the_call() {
        let bench = Lending::start();
        let pool = SegmentPool::new(MAX_PAYLOAD);
        let mut caller = bench.caller();
        caller.mode = LocalMode::new(MAX_PAYLOAD).lending(Some(pool.clone()));
        let payload = [b'e'; 100_000];
        let mut calls = || {
            for _ in 0..50 {
                let answer = caller.call(&call(Outgoing::Bytes(&payload))).unwrap();
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
    fn what_is_lent_goes_to_nobody_else() {
        let bench = Lending::start();
        let pool = SegmentPool::new(MAX_PAYLOAD);
        let lent = pool.copy_of(&[b'e'; 100_000]).unwrap();
        let mut outsider = LocalCaller {
            mode: LocalMode::new(MAX_PAYLOAD).lending(Some(pool)),
            route: route(&bench.callee, false),
        };
        let answer = outsider.call(&call(Outgoing::Segment((&lent).into()))).unwrap();
        let Payload::Segment(answer) = answer else { panic!("inline") };
        assert!(answer.token().is_none() && answer.to_vec().unwrap() == [b'e'; 100_000]);
    }

    #[test]
    fn a_lease_from_outside_the_group_ends_the_connection() {
        let bench = Lending::start();
        let mut liar = bench.caller();
        liar.route = LocalRoute { lends: true, ..route(&bench.callee, false) };
        let ended = liar.call(&call(Outgoing::Bytes(&[b'e'; 100_000])));
        assert!(matches!(ended, Err(CallError::Broken { .. })), "{ended:?}");
        let mut trusting = bench.caller();
        trusting.route = LocalRoute { lends: false, ..route(&bench.callee, true) };
        let ended = trusting.call(&call(Outgoing::Bytes(&[b'e'; 100_000])));
        assert!(matches!(ended, Err(CallError::Internal { .. })), "{ended:?}");
    }
}

#[test]
fn nothing_leaks() {
    crate::in_a_process_of_its_own("local::nothing_leaks", crate::suite::nothing_leaks::<Local>);
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
