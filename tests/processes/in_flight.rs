//! A caller and the socket of its callee: an answer that comes late, and segments that cannot be sent because this
//! user's processes have too many descriptors in flight.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use cwasi_dispatcher::{Dispatcher, Resolve, ResolvedRoute, Route, RouteQuery, Settings};
use cwasi_modes::local::{LocalRoute, error_answer, open_frame, send_as_is};
use cwasi_modes::{CallError, OutgoingPayload};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::seqpacket;
use cwasi_wire::control::EdgeReport;
use cwasi_wire::envelope::{Request, Response};
use cwasi_wire::frame::FRAME_MAX;
use nix::sys::resource::{Resource, Usage, UsageWho, getrusage, setrlimit};
use nix::unistd::{Uid, setuid};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("a_caller_without_room_for_descriptors_makes_one_copy_and_sleeps", makes_one_copy_and_sleeps),
    ("an_answer_after_the_deadline_says_why_it_is_late", says_why_it_is_late),
];

/// A user without other processes: the kernel counts for each user.
const USER: u32 = 54_322;
/// Descriptors that it may have in flight.
const LIMIT: u64 = 128;
/// How long a caller has, in milliseconds: the next time when it slept too rarely.
const WAITS_MS: [u64; 4] = [500, 2000, 8000, 32_000];
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

/// A caller with one route, over this connection.
fn dispatcher(connection: OwnedFd, max_request: u64) -> Dispatcher<Only> {
    let local = LocalRoute { instance: "i".into(), connection, max_request, lends: false };
    let route = Route::Local { local, reason: String::new(), nearest: true };
    let settings =
        Settings { caller: "caller".into(), max_payload: max_request, timeout_ms: 60_000 };
    Dispatcher::new(settings, Only(Some(route)))
}

/// The answer lies in the connection when the caller, whose deadline has passed, waits for it.
fn says_why_it_is_late() {
    // A reason may end as the text of a plain timeout does.
    let why = "1 of 2 parts; the other did not end before its deadline";
    let (ours, callee) = seqpacket::pair().unwrap();
    let mut caller = dispatcher(ours, 64);
    let deadline = Deadline::after(Duration::from_millis(1));
    let payload = OutgoingPayload::Bytes(b"x");
    let call = caller.start("callee", payload, None, Some(deadline)).unwrap();
    let mut buffer = vec![0; FRAME_MAX];
    let got = seqpacket::receive(callee.as_fd(), &mut buffer, None).unwrap();
    let opened = open_frame::<Request>(&buffer[..got.len], got.descriptors, 0, 64).unwrap();
    while !deadline.has_passed(monotonic_ns()) {
        std::thread::yield_now();
    }
    let (status, text) = error_answer(&CallError::Late { message: why.to_owned() });
    let response = Response::of(opened.envelope.id().unwrap(), status);
    let now = Some(Deadline::PASSED);
    send_as_is(callee.as_fd(), &response, text.outgoing(), &[], now).unwrap();
    match caller.wait(&[call], None) {
        Some((0, Err(CallError::Late { message }))) => assert_eq!(message, why),
        other => panic!("{other:?}"),
    }
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
    let mut dispatcher = dispatcher(connection, max_request);
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
    // Without root's privileges the limit holds.
    setuid(Uid::from_raw(USER)).unwrap();
    let _in_flight = fill();
    let mut sleeps_within = |milliseconds| {
        let before = usage();
        let deadline = Some(Deadline::after(Duration::from_millis(milliseconds)));
        let ended = dispatcher.call("callee", OutgoingPayload::Bytes(&payload), deadline);
        assert!(matches!(ended, Err(CallError::Timeout { .. })), "{ended:?}");
        let after = usage();
        let faults = after.minor_page_faults() - before.minor_page_faults();
        let copies = i64::try_from(4 * PAGES).unwrap();
        assert!(faults < copies, "{faults} page faults are more than one copy of {PAGES} pages");
        after.voluntary_context_switches() - before.voluntary_context_switches()
    };
    // A process that does not run does not sleep either: the next call has more time.
    let slept = WAITS_MS.iter().any(|wait| sleeps_within(*wait) >= 5);
    assert!(slept, "it slept fewer than 5 times within each of {WAITS_MS:?} ms");
}
