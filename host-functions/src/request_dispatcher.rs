//! `request_dispatcher(target_ptr, target_len, payload_ptr, payload_len, outcome_out) -> errno`. Runs in a worker.

use cwasi_abi::{Errno, Outcome, TARGET_MAX};

use crate::memory::part;
use crate::text::GuestText;
use crate::{CallOutcome, GuestMemory, GuestPtr, Host, PagedMemory, Regions, boxed};
use cwasi_modes::causes::{Invalid, InvalidName};
use cwasi_modes::{CallError, OutgoingPayload, Payload};

#[expect(clippy::cast_possible_truncation, reason = "16")]
const OUTCOME_LEN: u32 = Outcome::SIZE as u32;

/// Calls a function, waits for its end and keeps the response, or the error's message, for
/// [`response_read`](crate::response_read()). Returns the call's errno.
///
/// The outcome is written whenever the pointers are valid, for failed calls too.
///
/// # Errors
/// [`Errno::BadPointer`] without an outcome, [`Errno::TooManyHandles`] with an empty one (nothing was
/// called in either case), otherwise the failed call's errno.
pub fn request_dispatcher<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&Regions<M>>,
    target: (GuestPtr, u32),
    payload: (GuestPtr, u32),
    outcome_out: GuestPtr,
) -> Result<(), Errno> {
    let (name, bytes) = arguments(memory, target, payload, outcome_out)?;
    let outcome = match full(host) {
        Some(outcome) => outcome,
        None => {
            let outgoing = outgoing(regions, payload.0, bytes);
            let ended = checked(host, &name, bytes).and_then(|name| call(host, name, outgoing));
            keep(host, ended)
        }
    };
    write_outcome(memory, outcome_out, outcome)
}

/// [`request_dispatcher`] of a function that has others embedded. `Some(callee)`: the engine is to run that
/// one, and [`end_call`] follows; `None`: the call ended well.
///
/// # Errors
/// As [`request_dispatcher`].
pub fn begin_call<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&Regions<M>>,
    target: (GuestPtr, u32),
    payload: (GuestPtr, u32),
    outcome_out: GuestPtr,
) -> Result<Option<usize>, Errno> {
    let (name, bytes) = arguments(memory, target, payload, outcome_out)?;
    if let Some(outcome) = full(host) {
        return write_outcome(memory, outcome_out, outcome).map(|()| None);
    }
    let ended = match checked(host, &name, bytes) {
        Ok(target) => {
            let deadline = host.context.deadline;
            match host.dispatch.embedded(target, bytes.len() as u64, deadline) {
                Ok(Some(callee)) => return Ok(Some(callee)),
                Ok(None) => call(host, target, outgoing(regions, payload.0, bytes)),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    let outcome = keep(host, ended);
    write_outcome(memory, outcome_out, outcome).map(|()| None)
}

/// The call that [`begin_call`] left to the engine is over.
///
/// # Errors
/// As [`request_dispatcher`].
pub fn end_call(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    ended: CallOutcome,
    outcome_out: GuestPtr,
) -> Result<(), Errno> {
    let length = ended.as_ref().ok().map(|response| response.len());
    let within_limits = host.dispatch.embedded_ended(length);
    let outcome = keep(host, ended.and_then(|response| within_limits.map(|()| response)));
    write_outcome(memory, outcome_out, outcome)
}

/// The name of the function to call.
pub(crate) type TargetName = GuestText<TARGET_MAX>;

/// The name and the payload, once all three ranges are known to be good.
pub(crate) fn arguments(
    memory: &impl GuestMemory,
    target: (GuestPtr, u32),
    payload: (GuestPtr, u32),
    outcome_out: GuestPtr,
) -> Result<(TargetName, &[u8]), Errno> {
    let memory = memory.bytes();
    part(memory, outcome_out, OUTCOME_LEN)?;
    let name = TargetName::copy(part(memory, target.0, target.1)?);
    Ok((name, part(memory, payload.0, payload.1)?))
}

/// The outcome when no response could be kept.
pub(crate) fn full(host: &Host) -> Option<Outcome> {
    let status = code(Errno::TooManyHandles);
    host.responses.is_full().then(|| Outcome { status, ..Outcome::default() })
}

/// Writes the outcome; its status is the result.
pub(crate) fn write_outcome(
    memory: &mut impl GuestMemory,
    out: GuestPtr,
    outcome: Outcome,
) -> Result<(), Errno> {
    memory.write(out, &outcome.to_bytes())?;
    match i32::try_from(outcome.status).ok().and_then(Errno::from_code) {
        Some(Errno::Ok) => Ok(()),
        Some(errno) => Err(errno),
        None => Err(Errno::Internal),
    }
}

/// The target's name, when the call can be made at all.
pub(crate) fn checked<'a>(
    host: &Host,
    name: &'a TargetName,
    payload: &[u8],
) -> Result<&'a str, CallError> {
    let target = target_name(name).map_err(Invalid::from)?;
    host.check_call(payload.len() as u64)?;
    Ok(target)
}

/// The payload as it travels: a sealed region as the segment that it is.
pub(crate) fn outgoing<'a, M: PagedMemory>(
    regions: Option<&'a Regions<M>>,
    ptr: GuestPtr,
    bytes: &'a [u8],
) -> OutgoingPayload<'a> {
    match regions.and_then(|regions| regions.sealed(ptr, bytes.len() as u64)) {
        Some(segment) => OutgoingPayload::Segment(segment),
        None => OutgoingPayload::Bytes(bytes),
    }
}

fn call(host: &mut Host, target: &str, payload: OutgoingPayload<'_>) -> CallOutcome {
    host.call_checked(target, payload).map(boxed)
}

/// What the guest learns about the end of a call.
pub(crate) fn keep(host: &mut Host, ended: CallOutcome) -> Outcome {
    let (errno, response) = match ended {
        Ok(response) => (Errno::Ok, response),
        Err(error) => (error.errno(), boxed(Payload::Inline(error.to_string().into_bytes()))),
    };
    let length = u32::try_from(response.len());
    match (length, host.responses.insert(response)) {
        (Ok(length), Some(handle)) => Outcome { handle, length, status: code(errno), reserved: 0 },
        _ => Outcome { status: code(Errno::Internal), ..Outcome::default() },
    }
}

fn code(errno: Errno) -> u32 {
    errno.code().unsigned_abs()
}

/// The target's name when it can be one at all; whether it exists is the dispatcher's question.
fn target_name(name: &TargetName) -> Result<&str, InvalidName> {
    let text = || String::from_utf8_lossy(name.as_bytes()).into_owned();
    if name.len == 0 {
        return Err(InvalidName::Empty);
    }
    if name.len > TARGET_MAX {
        return Err(InvalidName::Long { length: name.len, start: text() });
    }
    name.as_str().map_err(|_| InvalidName::NotUtf8 { text: text() })
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::fake::{FakeMemory, host};
    use crate::{Context, RESPONSES_MAX, response_read};

    struct Fixture {
        host: Host,
        memory: FakeMemory,
    }

    impl Fixture {
        fn new() -> Self {
            let mut host = host();
            host.begin(Context::default());
            Self { host, memory: FakeMemory::of(4096) }
        }

        fn call(&mut self, target: &[u8], payload: &[u8]) -> (Result<(), Errno>, Outcome) {
            self.memory.write(GuestPtr(64), target).unwrap();
            self.memory.write(GuestPtr(1024), payload).unwrap();
            let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
            let outcome = request_dispatcher(
                &mut self.host,
                &mut self.memory,
                None,
                (GuestPtr(64), len(target)),
                (GuestPtr(1024), len(payload)),
                GuestPtr(0),
            );
            (outcome, self.outcome())
        }

        fn outcome(&self) -> Outcome {
            let field =
                |at: usize| u32::from_le_bytes(self.memory.bytes()[at..at + 4].try_into().unwrap());
            Outcome { handle: field(0), length: field(4), status: field(8), reserved: field(12) }
        }

        fn read(&mut self, outcome: Outcome) -> Vec<u8> {
            let at = GuestPtr(2048);
            let room = (at, outcome.length);
            response_read(&mut self.host, &mut self.memory, None, outcome.handle, room).unwrap();
            self.memory.slice(at, outcome.length).unwrap().to_vec()
        }
    }

    #[test]
    fn a_response_is_announced_and_read() {
        let mut fixture = Fixture::new();
        let (result, outcome) = fixture.call(b"reverse", b"abc");
        assert_eq!((result, outcome.status, outcome.length), (Ok(()), 0, 3));
        assert_eq!(fixture.read(outcome), b"cba");
        let (result, outcome) = fixture.call(b"reverse", b"");
        assert_eq!((result, outcome.length), (Ok(()), 0));
        assert_ne!(outcome.handle, 0, "an empty response has a handle too");
    }

    #[test]
    fn a_failed_call_has_its_errno_and_message() {
        let mut fixture = Fixture::new();
        let (result, outcome) = fixture.call(b"nobody", b"abc");
        assert_eq!(result, Err(Errno::NoSuchFunction));
        assert_eq!(outcome.status, 3);
        assert_eq!(fixture.read(outcome), b"nobody is unknown");
    }

    #[test]
    fn names_that_cannot_be_functions_are_explained() {
        for name in [&b""[..], &[b'x'; 256], b"\xff\xfe"] {
            let mut fixture = Fixture::new();
            let (result, outcome) = fixture.call(name, b"");
            assert_eq!(result, Err(Errno::InvalidArgument));
            let message = String::from_utf8(fixture.read(outcome)).unwrap();
            assert!(message.contains("name of the function"), "{message}");
        }
    }

    #[test]
    fn unread_responses_are_bounded_and_freed_with_the_invocation() {
        let mut fixture = Fixture::new();
        for _ in 0..RESPONSES_MAX {
            assert_eq!(fixture.call(b"reverse", b"a").0, Ok(()));
        }
        let (result, outcome) = fixture.call(b"reverse", b"a");
        assert_eq!((result, outcome.handle), (Err(Errno::TooManyHandles), 0));
        fixture.host.begin(Context::default());
        assert_eq!(fixture.call(b"reverse", b"a").0, Ok(()));
    }

    #[test]
    fn nothing_is_called_outside_an_invocation() {
        let mut fixture = Fixture::new();
        fixture.host.end();
        assert_eq!(fixture.call(b"reverse", b"a").0, Err(Errno::NotAvailable));
    }

    #[test]
    fn bad_pointers_are_noticed_before_the_call() {
        const END: u32 = 4096;
        for (target, payload, outcome) in [
            ((END, 1), (0, 0), 0),
            ((0, u32::MAX), (0, 0), 0),
            ((u32::MAX, u32::MAX), (0, 0), 0),
            ((64, 7), (END, 1), 0),
            ((64, 7), (1, u32::MAX), 0),
            ((64, 7), (u32::MAX - 3, 8), 0),
            ((64, 7), (0, 0), END),
            ((64, 7), (0, 0), END - 15),
            ((64, 7), (0, 0), u32::MAX - 3),
        ] {
            let mut fixture = Fixture::new();
            let result = request_dispatcher(
                &mut fixture.host,
                &mut fixture.memory,
                None,
                (GuestPtr(target.0), target.1),
                (GuestPtr(payload.0), payload.1),
                GuestPtr(outcome),
            );
            assert_eq!(result, Err(Errno::BadPointer), "{target:?} {payload:?} {outcome}");
            assert!(fixture.memory.bytes().iter().all(|byte| *byte == 0));
        }
    }
}
