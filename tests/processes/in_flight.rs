//! A caller whose segments cannot be sent: this user's processes have too many descriptors in flight.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use cwasi::dispatcher::{Dispatcher, Resolve, ResolvedRoute, Route, RouteQuery, Settings};
use cwasi::modes::local::LocalRoute;
use cwasi::modes::{CallError, OutgoingPayload};
use cwasi::sys::clock::Deadline;
use cwasi::sys::seqpacket;
use cwasi::wire::control::EdgeReport;
use nix::sys::resource::{Resource, Usage, UsageWho, getrusage, setrlimit};
use nix::unistd::{Uid, setuid};

use crate::harness::Case;

pub const CASES: &[Case] = &[(
    "a_caller_without_room_for_descriptors_makes_one_copy_and_sleeps",
    makes_one_copy_and_sleeps,
)];

/// A user that nobody else is: the kernel counts for each user.
const USER: u32 = 54_322;
/// Descriptors that it may have in flight.
const LIMIT: u64 = 128;
/// Small pages of the payload.
const PAGES: usize = 256;

struct Only(Option<Route>);

impl Resolve for Only {
    fn resolve(
        &mut self,
        _: &RouteQuery<'_>,
        _: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError> {
        Ok(ResolvedRoute { route: self.0.take(), instances: 1 })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
}

/// Sends descriptors until the kernel takes no more. They are in flight until both ends are closed.
fn fill() -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let some = [theirs.as_fd(); 2];
    let now = Some(Deadline::PASSED);
    while seqpacket::send(ours.as_fd(), &[b"x"], &some, now).is_ok() {}
    assert!(seqpacket::has_room(ours.as_fd()), "descriptors end before the socket's room does");
    (ours, theirs)
}

fn usage() -> Usage {
    getrusage(UsageWho::RUSAGE_SELF).unwrap()
}

fn makes_one_copy_and_sleeps() {
    let (connection, _callee) = seqpacket::pair().unwrap();
    let payload = vec![7; PAGES * 4096];
    let max_request = payload.len() as u64;
    let local = LocalRoute { instance: "i".into(), connection, max_request, lends: false };
    let route = Route::Local { local, reason: String::new(), nearest: true };
    let settings =
        Settings { caller: "caller".into(), max_payload: max_request, timeout_ms: 60_000 };
    let mut dispatcher = Dispatcher::new(settings, Only(Some(route)));
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
    // Without root's privileges the limit holds.
    setuid(Uid::from_raw(USER)).unwrap();
    let _in_flight = fill();
    let before = usage();
    let deadline = Some(Deadline::after(Duration::from_millis(500)));
    let ended = dispatcher.call("callee", OutgoingPayload::Bytes(&payload), deadline);
    assert!(matches!(ended, Err(CallError::Timeout { .. })), "{ended:?}");
    let after = usage();
    let faults = after.minor_page_faults() - before.minor_page_faults();
    let copies = i64::try_from(4 * PAGES).unwrap();
    assert!(faults < copies, "{faults} page faults are more than one copy of {PAGES} pages");
    let sleeps = after.voluntary_context_switches() - before.voluntary_context_switches();
    assert!(sleeps >= 5, "it slept {sleeps} times only");
}
