//! `dispatch_wait(handles_ptr, count, timeout_ms, ready_out) -> errno`, `dispatch_forget(handle) -> errno`

use std::time::{Duration, Instant};

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, Errno, Ready, WAIT_FOR_EVER};

use crate::calls::InFlight;
use crate::request_dispatcher::{full, keep};
use crate::{CallNumber, Deadline, Ended, GuestMemory, GuestPtr, Host};

/// Length of a handle in linear memory.
const HANDLE_LEN: usize = 4;
#[expect(clippy::cast_possible_truncation, reason = "20")]
const READY_LEN: u32 = Ready::SIZE as u32;

/// Waits until one of the calls behind `count` handles has ended, at most `timeout_ms` milliseconds
/// ([`WAIT_FOR_EVER`]: until their deadlines). Writes a [`Ready`] for the first of those that have, keeps its response
/// or its error's message for [`response_read`](crate::response_read), and frees its handle.
///
/// # Errors
/// All handles stay as they are: [`Errno::Timeout`] when none has ended; [`Errno::BadPointer`];
/// [`Errno::InvalidArgument`] unless there are 1 to [`CALLS_IN_FLIGHT_MAX`] handles; [`Errno::BadHandle`];
/// [`Errno::TooManyHandles`] when no response can be kept.
pub fn dispatch_wait(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    (handles, count): (GuestPtr, u32),
    timeout_ms: u32,
    ready_out: GuestPtr,
) -> Result<(), Errno> {
    memory.slice(ready_out, READY_LEN)?;
    let known = usize::try_from(count).ok().filter(|count| *count <= CALLS_IN_FLIGHT_MAX);
    if known.is_none_or(|count| count == 0) {
        return Err(Errno::InvalidArgument);
    }
    #[expect(clippy::cast_possible_truncation, reason = "4")]
    let bytes = memory.slice(handles, count * HANDLE_LEN as u32)?;
    let handles: Vec<u32> = bytes
        .chunks_exact(HANDLE_LEN)
        .map(|handle| u32::from_le_bytes([handle[0], handle[1], handle[2], handle[3]]))
        .collect();
    if handles.iter().any(|handle| host.calls.get(*handle).is_none()) {
        return Err(Errno::BadHandle);
    }
    if full(host).is_some() {
        return Err(Errno::TooManyHandles);
    }
    let until = (timeout_ms != WAIT_FOR_EVER)
        .then(|| Instant::now() + Duration::from_millis(u64::from(timeout_ms)));
    let (index, ended) = first_ended(host, &handles, until).ok_or(Errno::Timeout)?;
    host.calls.remove(handles[index]);
    let outcome = keep(host, ended);
    let index = u32::try_from(index).map_err(|_| Errno::Internal)?;
    memory.write(ready_out, &Ready { index, outcome }.to_bytes())
}

/// Frees the handle of a call whose end nobody wants to know. It may run all the same.
///
/// # Errors
/// [`Errno::BadHandle`].
pub fn dispatch_forget(host: &mut Host, handle: u32) -> Result<(), Errno> {
    match host.calls.remove(handle).ok_or(Errno::BadHandle)? {
        InFlight::Flying(number) => host.dispatch.forget(number),
        InFlight::Ended(_) => {}
    }
    Ok(())
}

/// The first of `handles`, all of them known, whose call has ended until then.
fn first_ended(host: &mut Host, handles: &[u32], until: Deadline) -> Option<(usize, Ended)> {
    let over = |handle: &u32| matches!(host.calls.get(*handle), Some(InFlight::Ended(_)));
    let over = handles.iter().position(over);
    let before = &handles[..over.unwrap_or(handles.len())];
    let flying: Vec<CallNumber> = before
        .iter()
        .filter_map(|handle| match host.calls.get(*handle) {
            Some(InFlight::Flying(number)) => Some(*number),
            _ => None,
        })
        .collect();
    let until = if over.is_some() { Some(Instant::now()) } else { until };
    if !flying.is_empty()
        && let Some(first) = host.dispatch.wait(&flying, until)
    {
        return Some(first);
    }
    let index = over?;
    match host.calls.remove(handles[index])? {
        InFlight::Ended(ended) => Some((index, ended)),
        InFlight::Flying(_) => None,
    }
}

#[cfg(test)]
mod tests;
