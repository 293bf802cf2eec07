//! Local buffer under the suite: the real receiver on a real socket, served by a thread.

use std::os::fd::AsFd;

use cwasi::modes::local::{LocalMode, LocalRoute, send_frame};
use cwasi::modes::{Call, CallError, Mode, Payload};
use cwasi::sys::seqpacket;
use cwasi::wire::envelope::Hello;

use crate::callee::{Callee, identity};
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
