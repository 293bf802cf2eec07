//! Limits of a request: its deadline, and which requests a function takes. Used by sandbox init and by workers,
//! whichever of them reads the request. Pure.

use std::time::Duration;

use cwasi_dispatcher::settings::DEFAULT_TIMEOUT_MS;
use cwasi_modes::CallError;
use cwasi_modes::causes::Invalid;
use cwasi_sys::clock::Deadline;
use cwasi_wire::control::FunctionLaunch;
use cwasi_wire::envelope::Request;

/// The function's own limit for a request that begins at `now`, if it has one.
pub fn latest(launch: &FunctionLaunch, now: u64) -> Option<Deadline> {
    launch.timeout_ms.map(|ms| after_ms(now, ms))
}

/// The caller's deadline or the function's own limit, whichever is first.
pub fn deadline(launch: &FunctionLaunch, caller: Option<Deadline>, now: u64) -> Deadline {
    let limits = [caller, latest(launch, now)].into_iter().flatten();
    limits.min().unwrap_or_else(|| after_ms(now, DEFAULT_TIMEOUT_MS))
}

/// When the caller stops waiting; `None` = never.
pub fn caller_deadline(request: &Request, now: u64) -> Option<Deadline> {
    request.remaining().map(|left| Deadline::at_ns(now).plus(left))
}

/// A function without `cwasi.fan-in` was called with a join key.
pub fn takes_no_parts(launch: &FunctionLaunch) -> CallError {
    Invalid::NoFanIn { function: launch.identity.function.clone() }.into()
}

fn after_ms(now: u64, ms: u64) -> Deadline {
    Deadline::at_ns(now).plus(Duration::from_millis(ms))
}
