//! Local buffer under the suite: the real receiver on a real socket, served by a thread.

use std::os::fd::AsFd;
use std::path::PathBuf;

use cwasi::dispatcher::{Question, Resolve, Resolved, Route};
use cwasi::modes::local::{LocalMode, LocalRoute, send_frame};
use cwasi::modes::{Call, CallError, Mode, Payload};
use cwasi::sys::seqpacket::{self, Deadline};
use cwasi::wire::control::EdgeReport;
use cwasi::wire::envelope::Hello;

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
        let connection = seqpacket::connect_to(&self.callee.socket()).unwrap();
        let hello = Hello::of(&identity("caller"), "", "1");
        send_frame(connection.as_fd(), &hello, b"", &[], None).unwrap();
        let route = LocalRoute { instance: "1".to_owned(), connection, max_request: MAX_PAYLOAD };
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
        let hello = Hello::of(&identity("caller"), "", "1");
        send_frame(connection.as_fd(), &hello, b"", &[], None).unwrap();
        let local = LocalRoute { instance: "1".to_owned(), connection, max_request: MAX_PAYLOAD };
        Ok(Resolved { route: Some(Route::Local { local, reason: String::new() }), instances: 1 })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
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
