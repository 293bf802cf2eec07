//! The import module `cwasi`, and the gates' own: host functions bound to the engine.
//!
//! No re-entry: nothing here calls the engine, except to find and measure linear memories.
#![expect(unsafe_code, reason = "C API")]

use std::cell::RefMut;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cwasi_abi::{Errno, import};
use cwasi_host_functions::{self as host_functions, GuestPtr, Host, Regions, StartParameters};
use wasmedge_sys::ffi;

use super::embedded::{Begin, BeginStart, End, Enter, Leave, Pass};
use super::handles::{FunctionType, ModuleInstance, Name};
use super::memory::RawMemory;
use super::slot::Slot;
use crate::vm::engine::VmError;
use crate::vm::gate;

/// A host function: its name, its number of `i32` parameters and `i32` results, what it does.
struct HostFunction {
    name: &'static str,
    params: u32,
    results: u32,
    entry: Entry,
}

impl HostFunction {
    const fn new<const PARAMS: usize, F: Bound<PARAMS>>(name: &'static str) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "at most 6")]
        Self { name, params: PARAMS as u32, results: F::RESULT as u32, entry: bound::<PARAMS, F> }
    }
}

type Entry = unsafe extern "C" fn(
    *mut c_void,
    *const ffi::WasmEdge_CallingFrameContext,
    *const ffi::WasmEdge_Value,
    *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result;

/// What guests import.
const FUNCTIONS: [HostFunction; 17] = [
    HostFunction::new::<5, RequestDispatcher>(import::REQUEST_DISPATCHER),
    HostFunction::new::<6, DispatchStart>(import::DISPATCH_START),
    HostFunction::new::<4, DispatchWait>(import::DISPATCH_WAIT),
    HostFunction::new::<1, DispatchForget>(import::DISPATCH_FORGET),
    HostFunction::new::<5, Emit>(import::EMIT),
    HostFunction::new::<3, ResponseRead>(import::RESPONSE_READ),
    HostFunction::new::<5, ContextGet>(import::CONTEXT_GET),
    HostFunction::new::<3, Log>(import::LOG),
    HostFunction::new::<2, TrapMessage>(import::TRAP_MESSAGE),
    HostFunction::new::<2, LinkOffer>(import::LINK_OFFER),
    HostFunction::new::<4, LinkRead>(import::LINK_READ),
    HostFunction::new::<2, LinkReturn>(import::LINK_RETURN),
    HostFunction::new::<3, LinkResult>(import::LINK_RESULT),
    HostFunction::new::<2, RegionShare>(import::REGION_SHARE),
    HostFunction::new::<2, RegionSeal>(import::REGION_SEAL),
    HostFunction::new::<2, RegionRelease>(import::REGION_RELEASE),
    HostFunction::new::<1, RegionInfo>(import::REGION_INFO),
];

/// What gates import.
const GATE_FUNCTIONS: [HostFunction; 6] = [
    HostFunction::new::<1, Enter>(gate::ENTER),
    HostFunction::new::<0, Leave>(gate::LEAVE),
    HostFunction::new::<5, Begin>(gate::BEGIN),
    HostFunction::new::<6, BeginStart>(gate::BEGIN_START),
    HostFunction::new::<2, Pass>(gate::PASS),
    HostFunction::new::<1, End>(gate::END),
];

/// The guests' import module, under this name. `slot` outlives every call into a guest that uses it.
pub(super) fn module(name: &str, slot: &Slot) -> Result<ModuleInstance, VmError> {
    bind(name, &FUNCTIONS, slot)
}

/// The gates' import module; as [`module`].
pub(super) fn gate_module(slot: &Slot) -> Result<ModuleInstance, VmError> {
    bind(gate::GATE_HOST, &GATE_FUNCTIONS, slot)
}

fn bind(name: &str, functions: &[HostFunction], slot: &Slot) -> Result<ModuleInstance, VmError> {
    let module = ModuleInstance::named(name)?;
    let data = ptr::from_ref(slot).cast_mut().cast::<c_void>();
    for HostFunction { name, params, results, entry } in functions {
        let ty = FunctionType::of_i32(*params, *results)?;
        // SAFETY:
        // - a live type, which is copied.
        // - `entry` has the type's number of parameters and results.
        // - `data` is only used by calls, which the slot outlives.
        let function =
            unsafe { ffi::WasmEdge_FunctionInstanceCreate(ty.raw(), Some(*entry), data, 0) };
        if function.is_null() {
            return Err(VmError::Setup { what: "host function" });
        }
        // SAFETY:
        // - a live module, which owns the function from here on; the name is copied.
        unsafe {
            ffi::WasmEdge_ModuleInstanceAddFunction(module.raw(), Name::of(name).raw(), function);
        }
    }
    Ok(module)
}

/// What one call of a host function sees.
pub(super) struct Environment<'a> {
    pub(super) host: &'a mut Host,
    pub(super) slot: &'a Slot,
    /// The calling guest's; a gate has none.
    pub(super) memory: RawMemory,
}

/// The parameters of `dispatch_start` in their order.
pub(super) const fn start_parameters(params: [u32; 6]) -> StartParameters {
    let [target, target_len, payload, payload_len, options, handle_out] = params;
    StartParameters {
        target: (GuestPtr(target), target_len),
        payload: (GuestPtr(payload), payload_len),
        options: GuestPtr(options),
        handle_out: GuestPtr(handle_out),
    }
}

/// The regions of the guest whose memory this is.
fn regions(slot: &Slot, memory: RawMemory) -> Option<RefMut<'_, Regions<RawMemory>>> {
    slot.regions_of(memory).map(|regions| regions.borrow_mut())
}

/// A host function of `i32`s.
pub(super) trait Bound<const PARAMS: usize> {
    /// False: it returns nothing, and an error of it is a trap of the guest.
    const RESULT: bool = true;

    /// The result, or the errno that is the result.
    fn call(env: &mut Environment<'_>, params: [u32; PARAMS]) -> Result<i32, Errno>;
}

/// Binds a function of `host-functions` that ends with an errno.
macro_rules! host_function {
    ($name:ident, $params:literal, |$env:ident, $args:pat_param| $body:expr) => {
        struct $name;

        impl Bound<$params> for $name {
            fn call($env: &mut Environment<'_>, $args: [u32; $params]) -> Result<i32, Errno> {
                $body.map(|()| Errno::Ok.code())
            }
        }
    };
}

host_function!(RequestDispatcher, 5, |env, [target, target_len, payload, payload_len, outcome]| {
    let target = (GuestPtr(target), target_len);
    let payload = (GuestPtr(payload), payload_len);
    let outcome = GuestPtr(outcome);
    let regions = regions(env.slot, env.memory);
    let regions = regions.as_deref();
    host_functions::request_dispatcher(env.host, &mut env.memory, regions, target, payload, outcome)
});
host_function!(DispatchStart, 6, |env, params| {
    let regions = regions(env.slot, env.memory);
    let regions = regions.as_deref();
    host_functions::dispatch_start(env.host, &mut env.memory, regions, start_parameters(params))
});
host_function!(DispatchWait, 4, |env, [handles, count, timeout_ms, ready_out]| {
    let handles = (GuestPtr(handles), count);
    let ready_out = GuestPtr(ready_out);
    host_functions::dispatch_wait(env.host, &mut env.memory, handles, timeout_ms, ready_out)
});
host_function!(DispatchForget, 1, |env, [handle]| {
    host_functions::dispatch_forget(env.host, handle)
});
host_function!(Emit, 5, |env, [target, target_len, payload, payload_len, outcome]| {
    let target = (GuestPtr(target), target_len);
    let payload = (GuestPtr(payload), payload_len);
    host_functions::emit(env.host, &mut env.memory, target, payload, GuestPtr(outcome))
});
host_function!(ResponseRead, 3, |env, [handle, ptr, len]| {
    let mut regions = regions(env.slot, env.memory);
    let room = (GuestPtr(ptr), len);
    host_functions::response_read(env.host, &mut env.memory, regions.as_deref_mut(), handle, room)
});
host_function!(RegionShare, 2, |env, [ptr, len]| {
    let mut regions = regions(env.slot, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_share(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionSeal, 2, |env, [ptr, len]| {
    let mut regions = regions(env.slot, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_seal(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionRelease, 2, |env, [ptr, len]| {
    let mut regions = regions(env.slot, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_release(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionInfo, 1, |env, [out]| {
    let mut regions = regions(env.slot, env.memory);
    host_functions::region_info(&mut env.memory, regions.as_deref_mut(), GuestPtr(out))
});
host_function!(ContextGet, 5, |env, [key, key_len, value, capacity, len_out]| {
    let key = (GuestPtr(key), key_len);
    let value = (GuestPtr(value), capacity);
    host_functions::context_get(env.host, &mut env.memory, key, value, GuestPtr(len_out))
});
host_function!(Log, 3, |env, [level, ptr, len]| {
    host_functions::log(env.host, &env.memory, level, GuestPtr(ptr), len)
});
host_function!(TrapMessage, 2, |env, [ptr, len]| {
    host_functions::trap_message(env.host, &env.memory, GuestPtr(ptr), len)
});
host_function!(LinkOffer, 2, |env, [ptr, len]| {
    let links = &mut env.slot.links.borrow_mut();
    host_functions::link_offer(links, &env.memory, env.memory, GuestPtr(ptr), len)
});
host_function!(LinkRead, 4, |env, [index, ptr, capacity, len_out]| {
    let (own, target) = (env.memory, (GuestPtr(ptr), capacity));
    let links = env.slot.links.borrow();
    host_functions::link_read(&links, &mut env.memory, &own, index, target, GuestPtr(len_out))
});
host_function!(LinkReturn, 2, |env, [ptr, len]| {
    let links = &mut env.slot.links.borrow_mut();
    host_functions::link_return(links, &env.memory, env.memory, GuestPtr(ptr), len)
});
host_function!(LinkResult, 3, |env, [ptr, capacity, len_out]| {
    let (own, target) = (env.memory, (GuestPtr(ptr), capacity));
    let links = env.slot.links.borrow();
    host_functions::link_result(&links, &mut env.memory, &own, target, GuestPtr(len_out))
});

/// What the engine calls. A guest sees an errno; only a gate's function without a result can trap.
unsafe extern "C" fn bound<const PARAMS: usize, F: Bound<PARAMS>>(
    data: *mut c_void,
    frame: *const ffi::WasmEdge_CallingFrameContext,
    params: *const ffi::WasmEdge_Value,
    returns: *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result {
    // SAFETY:
    // - `data` is the slot that `bind` bound, alive while a guest runs.
    let slot = unsafe { &*data.cast::<Slot>() };
    let mut values = [0_u32; PARAMS];
    for (index, value) in values.iter_mut().enumerate() {
        // SAFETY:
        // - the engine passes as many parameters as the function's type has, all `i32`.
        *value = unsafe { ffi::WasmEdge_ValueGetI32(*params.add(index)) }.cast_unsigned();
    }
    // SAFETY:
    // - the frame is alive during this call; its memory, or null, outlives it.
    // - the guest waits for this call's end.
    let memory = unsafe { RawMemory::new(ffi::WasmEdge_CallingFrameGetMemoryInstance(frame, 0)) };
    // A panic must not unwind through the engine's frames.
    let called = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY:
        // - host functions do not nest, so this is the only reference.
        let host = unsafe { slot.host() }.ok_or(Errno::Internal)?;
        F::call(&mut Environment { host, slot, memory }, values)
    }));
    let result = called.unwrap_or(Err(Errno::Internal));
    if F::RESULT {
        let value = result.unwrap_or_else(Errno::code);
        // SAFETY:
        // - the function's type has one result.
        unsafe { *returns = ffi::WasmEdge_ValueGenI32(value) };
    } else if result.is_err() {
        return ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_HostFuncError };
    }
    ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_Success }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gates rely on it (`vm::gate::dispatch`): types are matched by their index in this order.
    #[test]
    fn functions_are_the_abis_in_its_order() {
        let bound = FUNCTIONS.map(|function| (function.name, function.params));
        assert_eq!(bound, import::SIGNATURES);
        assert!(FUNCTIONS.iter().all(|function| function.results == 1));
    }
}
