//! The import module `cwasi`: host functions bound to the engine.
//!
//! No re-entry: nothing here calls the engine, except to find and measure the caller's linear memory.
#![expect(unsafe_code, reason = "C API")]

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cwasi_abi::{Errno, IMPORT_MODULE, import};
use cwasi_host_functions::{self as host_functions, GuestMemory, GuestPtr, Host};
use wasmedge_sys::ffi;

use super::PAGE_LEN;
use super::handles::{FunctionType, ModuleInstance, Name};
use crate::vm::engine::VmError;

/// The host that host functions act on, while the guest runs; null otherwise.
#[derive(Debug)]
pub(super) struct Slot(Cell<*mut Host>);

impl Slot {
    pub(super) const fn empty() -> Self {
        Self(Cell::new(ptr::null_mut()))
    }

    /// Lends `host` to the host functions while `run` runs.
    pub(super) fn lend<T>(&self, host: &mut Host, run: impl FnOnce() -> T) -> T {
        struct Reset<'a>(&'a Slot);
        impl Drop for Reset<'_> {
            fn drop(&mut self) {
                self.0.0.set(ptr::null_mut());
            }
        }
        self.0.set(host);
        let _reset = Reset(self);
        run()
    }
}

/// Number of `i32` parameters and what to do with them.
struct HostFunction {
    name: &'static str,
    params: u32,
    entry: Entry,
}

type Entry = unsafe extern "C" fn(
    *mut c_void,
    *const ffi::WasmEdge_CallingFrameContext,
    *const ffi::WasmEdge_Value,
    *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result;

const FUNCTIONS: [HostFunction; 5] = [
    HostFunction {
        name: import::REQUEST_DISPATCHER,
        params: 5,
        entry: bound::<5, RequestDispatcher>,
    },
    HostFunction { name: import::RESPONSE_READ, params: 3, entry: bound::<3, ResponseRead> },
    HostFunction { name: import::CONTEXT_GET, params: 5, entry: bound::<5, ContextGet> },
    HostFunction { name: import::LOG, params: 3, entry: bound::<3, Log> },
    HostFunction { name: import::TRAP_MESSAGE, params: 2, entry: bound::<2, TrapMessage> },
];

/// Number of `i32` parameters of a host function, which returns one `i32`; `None` when it does not exist.
pub(super) fn params_of(name: &str) -> Option<u32> {
    FUNCTIONS.iter().find(|function| function.name == name).map(|function| function.params)
}

/// The import module. `slot` outlives every call into a guest that uses it.
pub(super) fn module(slot: &Slot) -> Result<ModuleInstance, VmError> {
    let module = ModuleInstance::named(IMPORT_MODULE)?;
    let data = ptr::from_ref(slot).cast_mut().cast::<c_void>();
    for HostFunction { name, params, entry } in FUNCTIONS {
        let ty = FunctionType::of_i32(params)?;
        // SAFETY:
        // - a live type, which is copied.
        // - `entry` has the type's number of parameters and one result.
        // - `data` is only used by calls, which the slot outlives.
        let function =
            unsafe { ffi::WasmEdge_FunctionInstanceCreate(ty.raw(), Some(entry), data, 0) };
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

trait Bound<const PARAMS: usize> {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; PARAMS]) -> Result<(), Errno>;
}

struct RequestDispatcher;
struct ResponseRead;
struct ContextGet;
struct Log;
struct TrapMessage;

impl Bound<5> for RequestDispatcher {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; 5]) -> Result<(), Errno> {
        let [target, target_len, payload, payload_len, outcome_out] = params;
        let target = (GuestPtr(target), target_len);
        let payload = (GuestPtr(payload), payload_len);
        host_functions::request_dispatcher(host, memory, target, payload, GuestPtr(outcome_out))
    }
}

impl Bound<3> for ResponseRead {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; 3]) -> Result<(), Errno> {
        let [handle, ptr, len] = params;
        host_functions::response_read(host, memory, handle, GuestPtr(ptr), len)
    }
}

impl Bound<5> for ContextGet {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; 5]) -> Result<(), Errno> {
        let [key, key_len, value, capacity, len_out] = params;
        let value = (GuestPtr(value), capacity);
        host_functions::context_get(
            host,
            memory,
            (GuestPtr(key), key_len),
            value,
            GuestPtr(len_out),
        )
    }
}

impl Bound<3> for Log {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; 3]) -> Result<(), Errno> {
        let [level, ptr, len] = params;
        host_functions::log(host, memory, level, GuestPtr(ptr), len)
    }
}

impl Bound<2> for TrapMessage {
    fn call(host: &mut Host, memory: &mut FrameMemory, params: [u32; 2]) -> Result<(), Errno> {
        let [ptr, len] = params;
        host_functions::trap_message(host, memory, GuestPtr(ptr), len)
    }
}

/// What the engine calls. Always returns success to it: the guest sees an errno.
unsafe extern "C" fn bound<const PARAMS: usize, F: Bound<PARAMS>>(
    data: *mut c_void,
    frame: *const ffi::WasmEdge_CallingFrameContext,
    params: *const ffi::WasmEdge_Value,
    returns: *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result {
    // SAFETY:
    // - `data` is the slot that `module` bound, alive while a guest runs.
    let slot = unsafe { &*data.cast::<Slot>() };
    let mut values = [0_u32; PARAMS];
    for (index, value) in values.iter_mut().enumerate() {
        // SAFETY:
        // - the engine passes as many parameters as the function's type has, all `i32`.
        *value = unsafe { ffi::WasmEdge_ValueGetI32(*params.add(index)) }.cast_unsigned();
    }
    // SAFETY:
    // - the frame is alive during this call and the guest waits for its end.
    let mut memory = FrameMemory(unsafe { ffi::WasmEdge_CallingFrameGetMemoryInstance(frame, 0) });
    // A panic must not unwind through the engine's frames.
    let called = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY:
        // - `Slot::lend` put a unique borrow there for as long as the guest runs, and takes it away after.
        // - host functions do not nest, so this is the only reference made from it.
        let host = unsafe { slot.0.get().as_mut() }.ok_or(Errno::Internal)?;
        F::call(host, &mut memory, values)
    }));
    let errno = called.unwrap_or(Err(Errno::Internal)).err().unwrap_or(Errno::Ok);
    // SAFETY:
    // - the function's type has one result.
    unsafe { *returns = ffi::WasmEdge_ValueGenI32(errno.code()) };
    ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_Success }
}

/// The caller's linear memory during one host function.
struct FrameMemory(*mut ffi::WasmEdge_MemoryInstanceContext);

impl GuestMemory for FrameMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY:
        // - the guest waits for this host function, so nobody writes or grows its memory meanwhile.
        unsafe { memory_bytes(self.0) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and `self` is borrowed uniquely.
        unsafe { memory_bytes_mut(self.0) }
    }
}

/// All of a linear memory; empty for a null pointer.
///
/// # Safety
/// The memory instance is alive, and nobody writes or grows the memory for `'a`.
pub(super) unsafe fn memory_bytes<'a>(
    memory: *mut ffi::WasmEdge_MemoryInstanceContext,
) -> &'a [u8] {
    // SAFETY:
    // - passed on to the caller; a shared borrow of what could be borrowed uniquely.
    unsafe { memory_bytes_mut(memory) }
}

/// All of a linear memory, for writing; empty for a null pointer.
///
/// # Safety
/// As [`memory_bytes`], and nobody reads it for `'a`.
pub(super) unsafe fn memory_bytes_mut<'a>(
    memory: *mut ffi::WasmEdge_MemoryInstanceContext,
) -> &'a mut [u8] {
    if memory.is_null() {
        return &mut [];
    }
    // SAFETY:
    // - alive, says the caller.
    let pages = unsafe { ffi::WasmEdge_MemoryInstanceGetPageSize(memory) };
    let Ok(len) = usize::try_from(u64::from(pages) * PAGE_LEN) else {
        return &mut [];
    };
    // The engine takes 32-bit lengths, which is one byte less than the largest memory.
    let asked = u32::try_from(len).unwrap_or(u32::MAX);
    // SAFETY:
    // - alive, says the caller.
    let base = unsafe { ffi::WasmEdge_MemoryInstanceGetPointer(memory, 0, asked) };
    if base.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY:
    // - the engine backs `pages` pages from `base` on, readable and writable.
    // - the caller guarantees that nobody else touches them for `'a`; the base does not move.
    unsafe { std::slice::from_raw_parts_mut(base, len) }
}
