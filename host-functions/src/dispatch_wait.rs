//! `dispatch_wait(handles_ptr, count, timeout_ms, ready_out) -> errno`, `dispatch_forget(handle) -> errno`. Runs in a
//! worker.

use std::time::Duration;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, Errno, Ready, WAIT_FOR_EVER};

use crate::calls::InFlight;
use crate::request_dispatcher::{full, keep};
use crate::{CallOutcome, GuestMemory, GuestPtr, Host, boxed};
use cwasi_modes::CallTicket;
use cwasi_sys::clock::Deadline;

/// Length of a handle in linear memory.
const HANDLE_LEN: usize = 4;
#[expect(clippy::cast_possible_truncation, reason = "20")]
const READY_LEN: u32 = Ready::SIZE as u32;

/// Waits until one of the calls of `count` handles has ended, at most `timeout_ms` milliseconds ([`WAIT_FOR_EVER`]:
/// until their deadlines). Writes a [`Ready`] for the first ended one, keeps its response or error text for
/// [`response_read`](crate::response_read()), and frees its handle.
///
/// # Errors
/// No handle changes: [`Errno::Timeout`] if none has ended; [`Errno::BadPointer`]; [`Errno::InvalidArgument`] unless
/// there are 1 to [`CALLS_IN_FLIGHT_MAX`] handles; [`Errno::BadHandle`]; [`Errno::TooManyHandles`] without room for a
/// response.
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
    let handle = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let wanted = WaitSet::of(host, bytes.chunks_exact(HANDLE_LEN).map(handle))?;
    if full(host).is_some() {
        return Err(Errno::TooManyHandles);
    }
    let until = (timeout_ms != WAIT_FOR_EVER)
        .then(|| Deadline::after(Duration::from_millis(u64::from(timeout_ms))));
    let (index, ended) = wanted.first_ended(host, until).ok_or(Errno::Timeout)?;
    let outcome = keep(host, ended);
    let index = u32::try_from(index).map_err(|_| Errno::Internal)?;
    memory.write(ready_out, &Ready { index, outcome }.to_bytes())
}

/// Frees the handle of a dropped call. The call may still run.
///
/// # Errors
/// [`Errno::BadHandle`].
pub fn dispatch_forget(host: &mut Host, handle: u32) -> Result<(), Errno> {
    host.forget(handle)
}

/// The calls to wait for: running ones, up to the first that ended when it was started.
pub(crate) struct WaitSet {
    handles: Vec<u32>,
    pending: Vec<CallTicket>,
    over: bool,
}

impl WaitSet {
    /// Looks each of `handles` up once: a fan-out asks again after every answer.
    pub(crate) fn of(
        host: &Host,
        handles: impl ExactSizeIterator<Item = u32>,
    ) -> Result<Self, Errno> {
        let count = handles.len();
        let mut wanted = Self {
            handles: Vec::with_capacity(count),
            pending: Vec::with_capacity(count),
            over: false,
        };
        for handle in handles {
            let call = host.calls.get(handle).ok_or(Errno::BadHandle)?;
            if wanted.over {
                continue;
            }
            wanted.handles.push(handle);
            match call {
                InFlight::Pending(ticket) => wanted.pending.push(*ticket),
                InFlight::Ended(_) => wanted.over = true,
            }
        }
        Ok(wanted)
    }

    /// The first ended call, with its index; frees its handle.
    pub(crate) fn first_ended(
        self,
        host: &mut Host,
        until: Option<Deadline>,
    ) -> Option<(usize, CallOutcome)> {
        let until = if self.over { Some(Deadline::PASSED) } else { until };
        if !self.pending.is_empty()
            && let Some((index, ended)) = host.dispatch.wait(&self.pending, until)
        {
            host.calls.remove(*self.handles.get(index)?);
            return Some((index, ended.map(boxed)));
        }
        // All calls before it are running.
        let index = self.pending.len();
        match host.calls.remove(*self.handles.get(index)?)? {
            InFlight::Ended(ended) => Some((index, ended)),
            InFlight::Pending(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
