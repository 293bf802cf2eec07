//! The host's side of calls of embedded functions. Runs in a worker.
//!
//! An engine, or the trampolines in it (`vm::trampoline`), calls the callee. These functions move bytes between the
//! memories of caller and callee.

use std::num::NonZero;

use cwasi_abi::{Errno, REGION_PAGE, ResponseRef, export};
use cwasi_host_functions::{
    self as host_functions, CallOutcome, GuestPtr, MapTarget, StartParameters,
};

use super::binding::Composition;
use super::embedded::{AnswerTo, CalleeBuffers, EmbeddedCall};
use super::{Environment, HostCall, Output};
use crate::engine::no_memory;
use crate::linear_memory::VmMemory;
use crate::reactor::failure_message;
use crate::trampoline::{self, Begun, Delivery};
use cwasi_modes::{CallError, Payload};
use cwasi_sys::segment::Segment;

impl Output for Begun {
    #[expect(clippy::cast_possible_truncation, reason = "4")]
    const COUNT: u32 = Self::VALUES as u32;

    fn failed(errno: Errno) -> Option<Self> {
        Some(Self::Ended(errno.code()))
    }

    fn values(self) -> impl IntoIterator<Item = i32> {
        Self::values(self)
    }
}

/// `enter(function)`
#[derive(Debug)]
pub struct Enter;

impl HostCall<1> for Enter {
    const MEMORY: bool = false;
    type Output = ();

    fn call<M: VmMemory>(env: &mut Environment<'_, M>, [function]: [u32; 1]) -> Result<(), Errno> {
        env.binding.embedded.borrow_mut().settle();
        env.binding.links.borrow_mut().enter(function)?;
        if env.host.is_traced() {
            let (caller, callee) = ends(&env.binding.composition, function)?;
            env.host.enter_linked(caller, callee);
        }
        Ok(())
    }
}

/// Caller (`None`: the function itself) and callee of a linked function.
fn ends(composition: &Composition, function: u32) -> Result<(Option<&str>, &str), Errno> {
    let function = composition.function(function).ok_or(Errno::Internal)?;
    let caller = function.caller.map(|index| composition.name(index));
    Ok((caller, composition.name(function.callee)))
}

/// `leave()`
#[derive(Debug)]
pub struct Leave;

impl HostCall<0> for Leave {
    const MEMORY: bool = false;
    type Output = ();

    fn call<M: VmMemory>(env: &mut Environment<'_, M>, []: [u32; 0]) -> Result<(), Errno> {
        let ended = env.binding.links.borrow_mut().leave().ok_or(Errno::Internal)?;
        let (caller, callee) = ends(&env.binding.composition, ended.function)?;
        env.host.linked(caller, callee, &ended);
        Ok(())
    }
}

/// `direct(function, calls)`: so many calls of a linked function have not gone through the host.
#[derive(Debug)]
pub struct Direct;

impl HostCall<2> for Direct {
    const MEMORY: bool = false;
    type Output = ();

    fn call<M: VmMemory>(
        env: &mut Environment<'_, M>,
        [function, calls]: [u32; 2],
    ) -> Result<(), Errno> {
        let (caller, callee) = ends(&env.binding.composition, function)?;
        env.host.linked_directly(caller, callee, calls);
        Ok(())
    }
}

/// `begin(target_ptr, target_len, payload_ptr, payload_len, outcome_out) ->` a [`Begun`]
#[derive(Debug)]
pub struct Begin;

impl HostCall<5> for Begin {
    const MEMORY: bool = false;
    type Output = Begun;

    fn call<M: VmMemory>(env: &mut Environment<'_, M>, params: [u32; 5]) -> Result<Begun, Errno> {
        let [target, target_len, payload, payload_len, outcome_out] = params;
        let target = (GuestPtr(target), target_len);
        let payload = (GuestPtr(payload), payload_len);
        let outcome_out = GuestPtr(outcome_out);
        let mut memory = env.binding.embedded.borrow().caller().ok_or(Errno::Internal)?;
        let regions = env.binding.regions.borrow();
        let begun = host_functions::begin_call(
            env.host,
            &mut memory,
            Some(&regions),
            target,
            payload,
            outcome_out,
        )?;
        drop(regions);
        run_next(env, begun, payload, AnswerTo::Outcome(outcome_out))
    }
}

/// `begin_start(target_ptr, target_len, payload_ptr, payload_len, options_ptr, handle_out) ->` a [`Begun`]
#[derive(Debug)]
pub struct BeginStart;

impl HostCall<6> for BeginStart {
    const MEMORY: bool = false;
    type Output = Begun;

    fn call<M: VmMemory>(env: &mut Environment<'_, M>, params: [u32; 6]) -> Result<Begun, Errno> {
        let parameters = StartParameters::from(params);
        let mut memory = env.binding.embedded.borrow().caller().ok_or(Errno::Internal)?;
        let regions = env.binding.regions.borrow();
        let begun = host_functions::begin_start(env.host, &mut memory, Some(&regions), parameters)?;
        drop(regions);
        run_next(env, begun, parameters.payload, AnswerTo::Handle(parameters.handle_out))
    }
}

/// What the trampoline does next: nothing, or run a callee.
fn run_next<M: VmMemory>(
    env: &mut Environment<'_, M>,
    begun: Option<usize>,
    payload: (GuestPtr, u32),
    answer_to: AnswerTo,
) -> Result<Begun, Errno> {
    const ENDED: Begun = Begun::Ended(Errno::Ok.code());
    let Some(callee) = begun else { return Ok(ENDED) };
    env.host.enter_embedded(env.binding.composition.name(callee));
    env.binding.links.borrow_mut().forget_result();
    let is_sealed = env.binding.regions.borrow().sealed(payload.0, u64::from(payload.1)).is_some();
    let mut embedded = env.binding.embedded.borrow_mut();
    embedded.settle();
    // The trampoline gives back what the callee was asked for in an earlier call.
    if let (Some(mut memory), Some(regions)) =
        (embedded.memory_of(callee), env.binding.embedded_regions.get(callee))
    {
        regions.borrow_mut().unmap_payload(&mut memory);
    }
    // What is sealed is too long for a buffer.
    let buffers = embedded.buffers(callee, payload.1).filter(|_| !is_sealed);
    let delivery = match buffers {
        Some(_) => Delivery::Buffer,
        None if is_sealed => Delivery::Pages,
        None => Delivery::Block,
    };
    let response_out = GuestPtr(0);
    embedded.pending = Some(EmbeddedCall { callee, payload, delivery, answer_to, response_out });
    drop(embedded);
    if let Some(CalleeBuffers { payload, response }) = buffers
        && !pass_payload(env, response, payload, [export::RESPONSE, export::PAYLOAD])?
    {
        return Ok(ENDED);
    }
    let addresses = buffers.map(|it| [it.payload, it.response].map(|at| at.0.cast_signed()));
    let number = u32::try_from(callee + 1).ok().and_then(NonZero::new).ok_or(Errno::Internal)?;
    Ok(Begun::Run { number, delivery, addresses: addresses.unwrap_or_default() })
}

/// `pass(response_out, payload_ptr) -> errno`
#[derive(Debug)]
pub struct Pass;

impl HostCall<2> for Pass {
    const MEMORY: bool = false;
    type Output = i32;

    fn call<M: VmMemory>(
        env: &mut Environment<'_, M>,
        [response_out, at]: [u32; 2],
    ) -> Result<i32, Errno> {
        let (pending, _, callee) = pending(env)?;
        let len = pending.payload.1;
        if response_out == 0 || (at == 0 && len > 0) {
            let limit = env.binding.composition.memory_max;
            let message = no_memory(u64::from(len), callee.bytes().len(), limit);
            end(env, Err(CallError::Failed { message }))?;
            return Ok(trampoline::ENDED);
        }
        let passed = pass_payload(env, GuestPtr(response_out), GuestPtr(at), [export::ALLOC; 2])?;
        Ok(if passed { Errno::Ok.code() } else { trampoline::ENDED })
    }
}

/// Passes the payload to `at` in the callee's memory. Otherwise ends the call, and returns false or its errno.
/// `exports` are those that gave `response_out` and `at`.
fn pass_payload<M: VmMemory>(
    env: &mut Environment<'_, M>,
    response_out: GuestPtr,
    at: GuestPtr,
    exports: [&str; 2],
) -> Result<bool, Errno> {
    let (pending, caller, mut callee) = pending(env)?;
    let len = pending.payload.1;
    let size = callee.bytes().len();
    let outside = |export: &str, ptr: GuestPtr, len: usize| {
        let ptr = ptr.0;
        let message = format!(
            "`{export}`: {len} bytes at {ptr:#x} are outside its linear memory of {size} bytes"
        );
        CallError::Trapped { message }
    };
    let [response_export, payload_export] = exports;
    if response_ref(callee, response_out).is_err() {
        let failure = outside(response_export, response_out, ResponseRef::SIZE);
        return end(env, Err(failure)).map(|_| false);
    }
    let passed = if len == 0 {
        Ok(())
    } else if pending.delivery == Delivery::Pages {
        pass_sealed(env, &pending, callee, at)
    } else {
        let payload = caller.slice(pending.payload.0, len)?;
        callee.write(at, payload).map_err(|_errno| PayloadFault::Outside)
    };
    if let Err(reason) = passed {
        let failure = match reason {
            PayloadFault::Outside => outside(payload_export, at, len as usize),
            PayloadFault::Unreadable(message) => CallError::Internal { message },
        };
        return end(env, Err(failure)).map(|_| false);
    }
    if let Some(pending) = &mut env.binding.embedded.borrow_mut().pending {
        pending.response_out = response_out;
    }
    Ok(true)
}

/// Why a payload did not get into the callee's memory.
enum PayloadFault {
    /// The callee's address is outside of it.
    Outside,
    Unreadable(String),
}

/// Maps the caller's sealed payload to the block that the callee allocated for it, or copies it there as it was sealed.
fn pass_sealed<M: VmMemory>(
    env: &Environment<'_, M>,
    pending: &EmbeddedCall,
    mut callee: M,
    at: GuestPtr,
) -> Result<(), PayloadFault> {
    if map(env, pending, callee, at) {
        return Ok(());
    }
    let (ptr, len) = pending.payload;
    let target = callee.slice_mut(at, len).map_err(|_errno| PayloadFault::Outside)?;
    let callers = env.binding.regions.borrow();
    let unreadable = |error: &dyn std::fmt::Display| {
        PayloadFault::Unreadable(format!("the payload's region cannot be read: {error}"))
    };
    let segment = callers.sealed(ptr, u64::from(len));
    let segment = segment.ok_or_else(|| unreadable(&"it is gone"))?;
    segment.read_exact_at(target, 0).map_err(|error| unreadable(&error))
}

/// Maps the caller's payload to where the callee allocated pages for it; false when it is to be copied there.
fn map<M: VmMemory>(
    env: &Environment<'_, M>,
    pending: &EmbeddedCall,
    mut callee: M,
    at: GuestPtr,
) -> bool {
    let (ptr, len) = (pending.payload.0, u64::from(pending.payload.1));
    let callers = env.binding.regions.borrow();
    let (Some(segment), Some(room), Some(callees)) = (
        callers.sealed(ptr, len),
        pending.payload.1.checked_next_multiple_of(REGION_PAGE),
        env.binding.embedded_regions.get(pending.callee),
    ) else {
        return false;
    };
    callees.borrow_mut().map(&mut callee, (at, room), segment, MapTarget::Payload)
}

/// The callee's answer as shared memory, where it made it in a region.
fn in_place<M: VmMemory>(
    env: &Environment<'_, M>,
    callee: usize,
    mut memory: M,
    ptr: GuestPtr,
    len: u32,
) -> Option<Segment> {
    let mut regions = env.binding.embedded_regions.get(callee)?.borrow_mut();
    // What cannot be sealed or kept is copied out of the callee's memory.
    regions.answer(&mut memory, ptr, len).ok()?.cloned()
}

/// `end(status) -> errno`
#[derive(Debug)]
pub struct EndCall;

impl HostCall<1> for EndCall {
    const MEMORY: bool = false;
    type Output = i32;

    fn call<M: VmMemory>(env: &mut Environment<'_, M>, [status]: [u32; 1]) -> Result<i32, Errno> {
        let (pending, _, callee) = pending(env)?;
        let place = response_ref(callee, pending.response_out)?;
        let ptr = GuestPtr(place.ptr);
        let Ok(bytes) = callee.slice(ptr, place.len) else {
            let message = format!(
                "`cwasi_handle` returned {} bytes at {:#x}, outside its linear memory of {} bytes",
                place.len,
                place.ptr,
                callee.bytes().len()
            );
            return end(env, Err(CallError::Trapped { message }));
        };
        if status != 0 {
            let message = failure_message(bytes);
            return end(env, Err(CallError::Failed { message }));
        }
        if let Some(segment) = in_place(env, pending.callee, callee, ptr, place.len) {
            return end(env, Ok(Box::new(Payload::Segment(segment))));
        }
        let response = env.binding.embedded.borrow_mut().add_response(callee, ptr, place.len);
        end(env, Ok(response))
    }
}

/// The call that runs, with the memories of its caller and its callee.
fn pending<M: VmMemory>(env: &Environment<'_, M>) -> Result<(EmbeddedCall, M, M), Errno> {
    let embedded = env.binding.embedded.borrow();
    let pending = embedded.pending.ok_or(Errno::Internal)?;
    let callee = embedded.memory_of(pending.callee).ok_or(Errno::Internal)?;
    Ok((pending, embedded.caller().ok_or(Errno::Internal)?, callee))
}

fn response_ref<M: VmMemory>(callee: M, at: GuestPtr) -> Result<ResponseRef, Errno> {
    let mut bytes = [0; ResponseRef::SIZE];
    callee.copy_to(at, &mut bytes)?;
    Ok(ResponseRef::from_bytes(bytes))
}

/// The payload of the call that runs: the sealed segment that it is, or a copy.
///
/// # Errors
/// Without such a call.
pub fn pending_payload<M: VmMemory>(env: &Environment<'_, M>) -> Result<Payload, Errno> {
    let (pending, caller, _) = pending(env)?;
    let (ptr, len) = pending.payload;
    let regions = env.binding.regions.borrow();
    Ok(match regions.sealed(ptr, u64::from(len)) {
        Some(segment) => Payload::Segment(segment.clone()),
        None => Payload::Inline(caller.slice(ptr, len)?.to_vec()),
    })
}

/// Tells the caller how a call ended that was no module's.
///
/// # Errors
/// As [`request_dispatcher`](host_functions::request_dispatcher).
pub fn end_call<M: VmMemory>(
    env: &mut Environment<'_, M>,
    ended: CallOutcome,
) -> Result<i32, Errno> {
    end(env, ended)
}

/// Tells the caller how its call ended.
fn end<M: VmMemory>(env: &mut Environment<'_, M>, ended: CallOutcome) -> Result<i32, Errno> {
    let (pending, mut caller, _) = pending(env)?;
    env.binding.embedded.borrow_mut().pending = None;
    env.host.leave_embedded();
    match pending.answer_to {
        AnswerTo::Outcome(out) => host_functions::end_call(env.host, &mut caller, ended, out)?,
        AnswerTo::Handle(out) => host_functions::end_start(env.host, &mut caller, ended, out)?,
    }
    Ok(Errno::Ok.code())
}
