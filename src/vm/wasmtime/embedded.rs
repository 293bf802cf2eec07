//! Calls of embedded functions: a host function that calls the callee's exports in the same store. Runs in a worker.
#![expect(unsafe_code, reason = "calls linked functions without checking types")]

use std::rc::Rc;

use cwasi_abi::{Errno, HUGE_PAGE, PAYLOAD_ALIGN, REGION_PAGE, ResponseRef, import};
use cwasi_vm::host_calls::HostCall;
use cwasi_vm::host_calls::embedded_call::{EndCall, Enter, Leave, Pass};
use cwasi_vm::trampoline::{Begun, Delivery, ENDED};
use wasmtime::{Caller, ValRaw};

use super::binding::{Binding, act, serve};
use super::embedded_component;
use super::stop::TooDeep;
use super::vm::{Callee, CalleeBlocks, VmData, refresh_callee, refresh_own};

/// The functions that can call embedded modules.
pub(super) const DISPATCH: [&str; 2] = [import::REQUEST_DISPATCHER, import::DISPATCH_START];

/// Index of the payload's length in the parameters of both.
const PAYLOAD_LEN: usize = 3;

#[expect(clippy::cast_possible_truncation, reason = "8 and 4")]
const RESPONSE: (u32, u32) = (ResponseRef::SIZE as u32, ResponseRef::ALIGN as u32);

/// `request_dispatcher` and `dispatch_start` of a function that embeds others. A trap of the callee is the caller's.
pub(super) fn dispatch<F: HostCall<PARAMS, Output = Begun>, const PARAMS: usize>(
    caller: &mut Caller<'_, VmData>,
    params: [u32; PARAMS],
) -> wasmtime::Result<i32> {
    let binding = Rc::clone(&caller.data().binding);
    refresh_own(caller);
    let begun = serve::<F, PARAMS>(&binding, params);
    match begun.unwrap_or(Begun::Ended(Errno::Internal.code())) {
        Begun::Ended(errno) => Ok(errno),
        Begun::Run { number, delivery, addresses } => {
            let index = number.get() as usize - 1;
            let [payload, response] = addresses.map(i32::cast_unsigned);
            let call = EmbeddedRun { binding: &binding, index, delivery, len: params[PAYLOAD_LEN] };
            call.run(caller, payload, response)
        }
    }
}

/// A call of an embedded module's handler.
struct EmbeddedRun<'a> {
    binding: &'a Binding,
    /// The callee among the embedded modules.
    index: usize,
    delivery: Delivery,
    /// Length of the payload in bytes.
    len: u32,
}

impl EmbeddedRun<'_> {
    fn run(
        &self,
        caller: &mut Caller<'_, VmData>,
        mut payload: u32,
        mut response: u32,
    ) -> wasmtime::Result<i32> {
        let part = caller.data().parts.get(self.index);
        if let Some(component) = part.and_then(|part| part.component.clone()) {
            return embedded_component::run(&mut component.borrow_mut(), self.binding);
        }
        let Some(callee) = part.and_then(|part| part.callee.clone()) else {
            return Ok(Errno::Internal.code());
        };
        let mut asked = give_back(caller, &callee)?;
        if self.delivery != Delivery::Buffer {
            response = match callee.response {
                Some(address) => address,
                None => {
                    asked.response = callee.alloc.call(&mut *caller, RESPONSE)?;
                    asked.response
                }
            };
            asked = self.ask(caller, &callee, asked)?;
            payload = asked.payload;
        }
        callee.asked.set(asked);
        if self.delivery != Delivery::Buffer {
            refresh_callee(caller, self.index);
            match serve::<Pass, 2>(self.binding, [response, payload]) {
                Some(0) => {}
                Some(ENDED) => return Ok(Errno::Ok.code()),
                Some(errno) => return Ok(errno),
                None => return Ok(Errno::Internal.code()),
            }
        }
        let status = callee.handle.call(&mut *caller, (payload, self.len, response))?;
        refresh_callee(caller, self.index);
        let ended = serve::<EndCall, 1>(self.binding, [status.cast_unsigned()]);
        Ok(ended.unwrap_or(Errno::Internal.code()))
    }

    /// Allocates a block for the payload: whole pages for pages, aligned for huge pages if it fills one, or any block.
    fn ask(
        &self,
        caller: &mut Caller<'_, VmData>,
        callee: &Callee,
        mut asked: CalleeBlocks,
    ) -> wasmtime::Result<CalleeBlocks> {
        if self.len == 0 {
            return Ok(asked);
        }
        let pages = self.len.next_multiple_of(REGION_PAGE);
        let is_paged = self.delivery == Delivery::Pages;
        let huge = is_paged && self.len >= HUGE_PAGE;
        let tries = [
            huge.then_some((pages, HUGE_PAGE)),
            is_paged.then_some((pages, REGION_PAGE)),
            Some((self.len, PAYLOAD_ALIGN)),
        ];
        for (len, align) in tries.into_iter().flatten() {
            let payload = callee.alloc.call(&mut *caller, (len, align))?;
            if payload != 0 {
                asked = CalleeBlocks { payload, len, align, ..asked };
                break;
            }
        }
        Ok(asked)
    }
}

/// Frees the blocks of the callee's last call.
fn give_back(caller: &mut Caller<'_, VmData>, callee: &Callee) -> wasmtime::Result<CalleeBlocks> {
    let CalleeBlocks { response, payload, len, align } = callee.asked.get();
    if let Some(free) = &callee.free {
        if payload != 0 {
            free.call(&mut *caller, (payload, len, align))?;
        }
        if response != 0 {
            free.call(&mut *caller, (response, RESPONSE.0, RESPONSE.1))?;
        }
    }
    Ok(CalleeBlocks::default())
}

/// A call of the linked function `number`, whose parameters and results are in `values`.
pub(super) fn linked(
    caller: &mut Caller<'_, VmData>,
    number: u32,
    values: &mut [ValRaw],
) -> wasmtime::Result<()> {
    let data = caller.data();
    let binding = Rc::clone(&data.binding);
    let function = data.linked.get(number as usize).copied();
    let function = function.ok_or_else(|| wasmtime::Error::msg("no such linked function"))?;
    serve::<Enter, 1>(&binding, [number]).ok_or(TooDeep)?;
    // SAFETY:
    // - the program's loader compared the types of import and export, so `values` has room for both.
    unsafe { function.call_unchecked(&mut *caller, values) }?;
    let links = caller.data().links.clone();
    if let Some(links) = &links {
        links.borrow_mut().end_one(&mut *caller, &binding, number);
    }
    serve::<Leave, 0>(&binding, []).ok_or(TooDeep)?;
    if let Some(links) = links {
        let recorded = act(&binding, |env| Ok(env.host.records_linked()));
        links.borrow_mut().choose(&mut *caller, recorded.unwrap_or_default())?;
    }
    Ok(())
}
