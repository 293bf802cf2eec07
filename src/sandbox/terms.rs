//! What holds for a request whoever reads it: init or a worker.

use crate::dispatcher::call::DEFAULT_TIMEOUT_MS;
use crate::modes::CallError;
use crate::sys::clock::deadline_after;
use crate::wire::control::FunctionLaunch;
use crate::wire::envelope::Request;

/// The function's own limit for a request that begins now, if it has one; `CLOCK_MONOTONIC` nanoseconds.
pub fn latest(launch: &FunctionLaunch, now: u64) -> Option<u64> {
    launch.timeout_ms.map(|ms| after_ms(now, ms))
}

/// The caller's deadline or the function's own limit, whichever is first; times in `CLOCK_MONOTONIC` nanoseconds.
pub fn deadline(launch: &FunctionLaunch, caller: Option<u64>, now: u64) -> u64 {
    match (caller, latest(launch, now)) {
        (Some(caller), Some(own)) => caller.min(own),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => after_ms(now, DEFAULT_TIMEOUT_MS),
    }
}

/// When the caller stops waiting; `None` = never.
pub fn caller_deadline(request: &Request, now: u64) -> Option<u64> {
    deadline_after(request.remaining(), now)
}

/// A function without `cwasi.fan-in` was called with a join key.
pub fn takes_no_parts(launch: &FunctionLaunch) -> CallError {
    let function = &launch.identity.function;
    let message =
        format!("{function} takes no parts: set cwasi.fan-in there, or call it without a join key");
    CallError::Invalid { message }
}

fn after_ms(now: u64, ms: u64) -> u64 {
    now.saturating_add(ms.saturating_mul(1_000_000))
}
