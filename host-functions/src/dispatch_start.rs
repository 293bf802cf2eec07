//! `dispatch_start(target_ptr, target_len, payload_ptr, payload_len, options_ptr, handle_out) ->
//! errno`. Runs in a worker.

use cwasi_abi::{CallOptions, Errno, JOIN_KEY_MAX};

use crate::calls::InFlight;
use crate::request_dispatcher::{TargetName, checked, outgoing};
use crate::text::GuestText;
use crate::{CallOutcome, GuestMemory, GuestPtr, Host, PagedMemory, Regions};
use cwasi_wire::envelope::Join;

#[expect(clippy::cast_possible_truncation, reason = "16")]
const OPTIONS_LEN: u32 = CallOptions::SIZE as u32;
/// Length of a handle in linear memory.
const HANDLE_LEN: u32 = 4;

/// The parameters of `dispatch_start`.
#[derive(Clone, Copy, Debug)]
pub struct StartParameters {
    /// The callee's name.
    pub target: (GuestPtr, u32),
    /// The payload.
    pub payload: (GuestPtr, u32),
    /// A [`CallOptions`]; 0 = none.
    pub options: GuestPtr,
    /// Address for the call's handle.
    pub handle_out: GuestPtr,
}

impl From<[u32; 6]> for StartParameters {
    fn from([target, target_len, payload, payload_len, options, handle_out]: [u32; 6]) -> Self {
        Self {
            target: (GuestPtr(target), target_len),
            payload: (GuestPtr(payload), payload_len),
            options: GuestPtr(options),
            handle_out: GuestPtr(handle_out),
        }
    }
}

/// Starts a call without waiting for it, and keeps it for [`dispatch_wait`](crate::dispatch_wait()). The guest may
/// change the payload afterwards.
///
/// # Errors
/// The call was not started: [`Errno::BadPointer`], [`Errno::InvalidArgument`] for invalid options,
/// [`Errno::NotAvailable`] outside an invocation, [`Errno::TooManyHandles`]. Every other error is the call's end.
pub fn dispatch_start<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&Regions<M>>,
    parameters: StartParameters,
) -> Result<(), Errno> {
    match start(host, memory, regions, parameters, false)? {
        StartOutcome::Started(call) => keep(host, memory, call, parameters.handle_out),
        // Not requested.
        StartOutcome::Embedded(_) => Err(Errno::Internal),
    }
}

/// [`dispatch_start`] of a function with embedded modules. `Some(callee)`: the engine runs it now, and [`end_start`]
/// follows. `None`: the call was started.
///
/// # Errors
/// As [`dispatch_start`].
pub fn begin_start<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&Regions<M>>,
    parameters: StartParameters,
) -> Result<Option<usize>, Errno> {
    match start(host, memory, regions, parameters, true)? {
        StartOutcome::Started(call) => {
            keep(host, memory, call, parameters.handle_out).map(|()| None)
        }
        StartOutcome::Embedded(callee) => Ok(Some(callee)),
    }
}

/// Ends a call that [`begin_start`] left to the engine; `dispatch_wait` reports it like any other.
///
/// # Errors
/// As [`dispatch_start`].
pub fn end_start(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    ended: CallOutcome,
    handle_out: GuestPtr,
) -> Result<(), Errno> {
    let length = ended.as_ref().ok().map(|response| response.len());
    let within_limits = host.dispatch.embedded_ended(length);
    let ended = ended.and_then(|response| within_limits.map(|()| response));
    keep(host, memory, InFlight::Ended(ended), handle_out)
}

enum StartOutcome {
    Started(InFlight),
    Embedded(usize),
}

fn start<M: PagedMemory>(
    host: &mut Host,
    memory: &M,
    regions: Option<&Regions<M>>,
    parameters: StartParameters,
    embeds: bool,
) -> Result<StartOutcome, Errno> {
    let StartParameters { target, payload, options, handle_out } = parameters;
    memory.slice(handle_out, HANDLE_LEN)?;
    let name = TargetName::copy(memory.slice(target.0, target.1)?);
    let bytes = memory.slice(payload.0, payload.1)?;
    let join = join(memory, options)?;
    if !host.running {
        return Err(Errno::NotAvailable);
    }
    if host.calls.is_full() {
        return Err(Errno::TooManyHandles);
    }
    let target = match checked(host, &name, bytes) {
        Ok(target) => target,
        Err(error) => return Ok(StartOutcome::Started(InFlight::Ended(Err(error)))),
    };
    // A part is handled together with others, and an embedded function cannot wait for them.
    if embeds && join.is_none() {
        match host.dispatch.embedded(target, bytes.len() as u64, host.context.deadline) {
            Ok(Some(callee)) => return Ok(StartOutcome::Embedded(callee)),
            Ok(None) => {}
            Err(error) => return Ok(StartOutcome::Started(InFlight::Ended(Err(error)))),
        }
    }
    let payload = outgoing(regions, payload.0, bytes);
    host.start_checked(target, payload, join).map(StartOutcome::Started)
}

/// The options' group of a fan-in.
fn join(memory: &impl GuestMemory, at: GuestPtr) -> Result<Option<Join>, Errno> {
    if at == GuestPtr(0) {
        return Ok(None);
    }
    let mut bytes = [0; CallOptions::SIZE];
    bytes.copy_from_slice(memory.slice(at, OPTIONS_LEN)?);
    let CallOptions { join_key_ptr, join_key_len, parts, part } = CallOptions::from_bytes(bytes);
    if join_key_len == 0 {
        return Ok(None);
    }
    let key = GuestText::<JOIN_KEY_MAX>::copy(memory.slice(GuestPtr(join_key_ptr), join_key_len)?);
    if parts > 0 && part >= parts {
        return Err(Errno::InvalidArgument);
    }
    let key = key.as_str()?.to_owned();
    Ok(Some(Join { key, parts, part, ..Join::default() }))
}

/// Writes the handle of a call.
fn keep(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    call: InFlight,
    handle_out: GuestPtr,
) -> Result<(), Errno> {
    let handle = host.calls.insert(call);
    memory.write(handle_out, &handle.to_le_bytes())
}
