//! Conformance of the modes: one suite, generic over [`Bench`], that every mode has to pass.
//!
//! A bench starts a callee that runs [`callee`] for each request and gives callers that reach it. Cases that
//! only some modes can have are declared by the bench ([`Bench::can_be_killed`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod callee;
mod embedded;
mod fan;
mod held;
mod local;
mod networked;
mod suite;

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use cwasi::modes::{Call, CallError, Outgoing, Payload};

/// Largest payload of the suite's callee in bytes: above a frame, small enough to be quick.
pub const MAX_PAYLOAD: u64 = 3 << 20;

/// One mode under test.
pub trait Bench: Sized {
    /// A caller's end; dropped when the caller goes.
    type Caller: Caller + Send;

    /// Starts the callee.
    fn start() -> Self;
    /// A new caller with connections of its own.
    fn caller(&self) -> Self::Caller;
    /// Kills the callee at once, as `kill -9` would, if the mode has a callee that can be killed.
    fn kill(&mut self);
    /// True when [`Self::kill`] makes sense.
    fn can_be_killed() -> bool;
    /// True when the callee has a process of its own: only then can it be late, be overloaded, or trap alone.
    fn is_apart() -> bool {
        true
    }
}

/// A caller's end of one mode.
pub trait Caller {
    /// One call.
    fn call(&mut self, call: &Call<'_>) -> Result<Payload, CallError>;
}

/// What the callee does with a payload: the first byte chooses.
///
/// - `e`: answers the payload; `r`: answers it reversed
/// - `f`: fails with a message; `t`: traps; `o`: overloaded
/// - `w`: waits until its test lets it answer the payload ([`held`]); `n`: never answers
/// - `b`: answers more than the caller's limit
/// - anything else, or nothing: answers an empty response
pub fn callee(payload: &[u8]) -> Option<Result<Vec<u8>, CallError>> {
    let answer = match payload.first() {
        Some(b'e') => Ok(payload.to_vec()),
        Some(b'r') => Ok(payload.iter().rev().copied().collect()),
        Some(b'f') => Err(CallError::Failed { message: "no such plate".to_owned() }),
        Some(b't') => Err(CallError::Trapped { message: "unreachable".to_owned() }),
        Some(b'o') => Err(CallError::Overloaded { message: "1 worker, queue of 0".to_owned() }),
        Some(b'w') => {
            held::arrive(payload);
            held::until_released(payload);
            Ok(payload.to_vec())
        }
        Some(b'n') => {
            held::arrive(payload);
            return None;
        }
        Some(b'b') => Ok(vec![0; usize::try_from(MAX_PAYLOAD).unwrap() + 1]),
        _ => Ok(Vec::new()),
    };
    Some(answer)
}

/// The bytes of a payload, wherever they lie.
pub fn bytes(payload: Outgoing<'_>) -> Vec<u8> {
    match payload {
        Outgoing::Bytes(bytes) => bytes.to_vec(),
        Outgoing::Segment(segment) => segment.sealed_copy().unwrap().to_vec().unwrap(),
    }
}

/// Runs `case` in a process of its own, where no other test opens descriptors; `test` is the calling test.
pub fn in_a_process_of_its_own(test: &str, case: fn()) {
    if std::env::var_os("CWASI_LEAK_CHILD").is_some() {
        return case();
    }
    let status = Command::new("/proc/self/exe")
        .arg0("conformance")
        .args(["--exact", test, "--test-threads=1"])
        .env("CWASI_LEAK_CHILD", "1")
        .status()
        .unwrap();
    assert!(status.success());
}
