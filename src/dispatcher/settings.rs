//! The limits of a function's calls, which apply in every mode. Runs in a worker.

use std::time::Duration;

use cwasi_abi::{FUNCTION_NAME_MAX, PAYLOAD_MAX};
use cwasi_modes::CallError;
use cwasi_modes::causes::Invalid;
use cwasi_sys::clock::Deadline;

/// Default deadline of a call in milliseconds, when neither the caller nor the deployment gives one.
pub const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// The dispatcher's settings for its function.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The caller's function name.
    pub caller: String,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Longest wait of a call in milliseconds.
    pub timeout_ms: u64,
}

impl Settings {
    /// Checks a call's target and the length of its payload.
    pub(super) fn check(&self, target: &str, length: u64) -> Result<(), CallError> {
        check(target, length, self.max_payload)
    }

    /// When a call ends at the latest; `invocation`: the deadline of the caller's invocation.
    pub(super) fn deadline(&self, invocation: Option<Deadline>) -> Deadline {
        let own = Deadline::after(Duration::from_millis(self.timeout_ms));
        invocation.map_or(own, |invocation| invocation.min(own))
    }
}

/// Checks a call's target and the length of its payload.
pub(super) fn check(target: &str, length: u64, max_payload: u64) -> Result<(), CallError> {
    let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
    if name.is_empty() || name.len() > FUNCTION_NAME_MAX {
        return Err(Invalid::Name { target: target.to_owned() }.into());
    }
    let limit = max_payload.min(PAYLOAD_MAX);
    if length > limit {
        return Err(CallError::too_large(&format!("payload for {target}"), length, limit));
    }
    Ok(())
}

pub(super) fn timeout(target: &str) -> CallError {
    CallError::Timeout { target: target.to_owned() }
}
