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
/// or its error's message for [`response_read`](crate::response_read()), and frees its handle.
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
    let wanted = Wanted::of(host, bytes)?;
    if full(host).is_some() {
        return Err(Errno::TooManyHandles);
    }
    let until = (timeout_ms != WAIT_FOR_EVER)
        .then(|| Instant::now() + Duration::from_millis(u64::from(timeout_ms)));
    let (index, ended) = wanted.first_ended(host, until).ok_or(Errno::Timeout)?;
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

/// The calls of which the first that ends is wanted: those under way, up to the first that was over when it was started.
struct Wanted {
    handles: Vec<u32>,
    flying: Vec<CallNumber>,
    over: bool,
}

impl Wanted {
    /// Those behind `handles`, little-endian. One look at each: a fan-out asks again after every answer.
    fn of(host: &Host, handles: &[u8]) -> Result<Self, Errno> {
        let count = handles.len() / HANDLE_LEN;
        let mut wanted = Self {
            handles: Vec::with_capacity(count),
            flying: Vec::with_capacity(count),
            over: false,
        };
        for handle in handles.chunks_exact(HANDLE_LEN) {
            let handle = u32::from_le_bytes([handle[0], handle[1], handle[2], handle[3]]);
            let call = host.calls.get(handle).ok_or(Errno::BadHandle)?;
            if wanted.over {
                continue;
            }
            wanted.handles.push(handle);
            match call {
                InFlight::Flying(number) => wanted.flying.push(*number),
                InFlight::Ended(_) => wanted.over = true,
            }
        }
        Ok(wanted)
    }

    /// The first that has ended until then, with its place; its handle is free.
    fn first_ended(self, host: &mut Host, until: Deadline) -> Option<(usize, Ended)> {
        let until = if self.over { Some(Instant::now()) } else { until };
        if !self.flying.is_empty()
            && let Some((index, ended)) = host.dispatch.wait(&self.flying, until)
        {
            host.calls.remove(*self.handles.get(index)?);
            return Some((index, ended));
        }
        // Those before it are all under way.
        let index = self.flying.len();
        match host.calls.remove(*self.handles.get(index)?)? {
            InFlight::Ended(ended) => Some((index, ended)),
            InFlight::Flying(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
