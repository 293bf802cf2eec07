//! Conformance of the modes: one suite, generic over [`Fixture`], that every mode has to pass.
//!
//! A fixture starts a callee that runs [`callee`] for each request and gives callers that reach it, each through its
//! dispatcher, as guests' calls go. The suite has two parts: what holds in every mode, embedded included, and what can
//! happen only where the callee has a process of its own ([`Apart`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod blocked;
mod callee;
mod dispatched;
mod embedded;
mod fan;
mod local;
mod networked;
mod suite;

use cwasi_modes::{CallError, OutgoingPayload, Overload};
use cwasi_sys::clock::Deadline;
pub use cwasi_testbed::own_process::in_a_process_of_its_own;

/// Largest payload of the suite's callee in bytes: above a frame, small enough to be quick.
pub const MAX_PAYLOAD: u64 = 3 << 20;

/// One mode under test.
pub trait Fixture: Sized {
    /// A caller's end; dropped when the caller goes.
    type Caller: Caller + Send;

    fn start() -> Self;
    /// A new caller with connections of its own.
    fn caller(&self) -> Self::Caller;
}

/// A mode whose callee has a process of its own: it can be late, be overloaded, trap alone, and die alone.
pub trait Apart: Fixture {
    /// Kills the callee at once, as `kill -9` would.
    fn kill(&mut self);
}

/// A caller's end of one mode.
pub trait Caller {
    /// One call of the callee.
    fn call(
        &mut self,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> Result<Vec<u8>, CallError>;
}

/// What the callee does with a payload: the first byte chooses.
///
/// - `e`: answers the payload; `r`: answers it reversed
/// - `f`: fails with a message; `t`: traps; `o`: overloaded
/// - `w`: waits until its test lets it answer the payload ([`blocked`]); `n`: never answers
/// - `b`: answers more than the caller's limit
/// - anything else, or nothing: answers an empty response
pub fn callee(payload: &[u8]) -> Option<Result<Vec<u8>, CallError>> {
    let answer = match payload.first() {
        Some(b'e') => Ok(payload.to_vec()),
        Some(b'r') => Ok(payload.iter().rev().copied().collect()),
        Some(b'f') => Err(CallError::Failed { message: "no such plate".to_owned() }),
        Some(b't') => Err(CallError::Trapped { message: "unreachable".to_owned() }),
        Some(b'o') => Err(Overload::Remote { text: "1 worker, queue of 0".to_owned() }.into()),
        Some(b'w') => {
            blocked::arrive(payload);
            blocked::until_released(payload);
            Ok(payload.to_vec())
        }
        Some(b'n') => {
            blocked::arrive(payload);
            return None;
        }
        Some(b'b') => Ok(vec![0; usize::try_from(MAX_PAYLOAD).unwrap() + 1]),
        _ => Ok(Vec::new()),
    };
    Some(answer)
}
