//! A host function in the engine: bound to a VM, called with the guest's memory. Runs in a worker.
//!
//! Invariant: no re-entry. Nothing here calls the engine, except to find and measure linear memories.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::c_void;
use std::ptr;

use wasmedge_sys::ffi;

use super::handles::{FunctionType, ModuleInstance, Name};
use super::memory::RawMemory;
use cwasi_vm::engine::VmError;
use cwasi_vm::host_calls::binding::HostBinding;
use cwasi_vm::host_calls::{self, HostCall, Output};

/// The data of a VM's host functions.
pub(super) type Binding = HostBinding<RawMemory>;

/// A host function: name, number of `i32` parameters and results, implementation.
pub(super) struct HostFunction {
    pub(super) name: &'static str,
    pub(super) params: u32,
    pub(super) results: u32,
    entry: HostFunctionEntry,
}

impl HostFunction {
    pub(super) const fn new<const PARAMS: usize, F: HostCall<PARAMS>>(name: &'static str) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "at most 6")]
        Self {
            name,
            params: PARAMS as u32,
            results: <F::Output as Output>::COUNT,
            entry: bound::<PARAMS, F>,
        }
    }
}

type HostFunctionEntry = unsafe extern "C" fn(
    *mut c_void,
    *const ffi::WasmEdge_CallingFrameContext,
    *const ffi::WasmEdge_Value,
    *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result;

/// Makes an import module of these functions. `binding` outlives every call into a guest that uses it.
pub(super) fn bind(
    name: &str,
    functions: &[HostFunction],
    binding: &Binding,
) -> Result<ModuleInstance, VmError> {
    let module = ModuleInstance::named(name)?;
    let data = ptr::from_ref(binding).cast_mut().cast::<c_void>();
    for HostFunction { name, params, results, entry } in functions {
        let ty = FunctionType::of_i32(*params, *results)?;
        // SAFETY:
        // - a live type, which is copied.
        // - `entry` has the type's number of parameters and results.
        // - `data` is only used by calls, which the binding outlives.
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

/// The engine calls it. A guest sees an errno; only a trampoline's function without a result can trap.
unsafe extern "C" fn bound<const PARAMS: usize, F: HostCall<PARAMS>>(
    data: *mut c_void,
    frame: *const ffi::WasmEdge_CallingFrameContext,
    params: *const ffi::WasmEdge_Value,
    returns: *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result {
    // SAFETY:
    // - `data` is the binding that `bind` bound, alive while a guest runs.
    let binding = unsafe { &*data.cast::<Binding>() };
    let mut values = [0_u32; PARAMS];
    for (index, value) in values.iter_mut().enumerate() {
        // SAFETY:
        // - the engine passes as many parameters as the function's type has, all `i32`.
        *value = unsafe { ffi::WasmEdge_ValueGetI32(*params.add(index)) }.cast_unsigned();
    }
    let memory = if F::MEMORY {
        // SAFETY:
        // - the frame is alive during this call.
        unsafe { ffi::WasmEdge_CallingFrameGetMemoryInstance(frame, 0) }
    } else {
        ptr::null_mut()
    };
    // SAFETY:
    // - null, or a memory that outlives this call.
    // - the guest waits for this call's end.
    let memory = unsafe { RawMemory::new(memory) };
    // SAFETY:
    // - a guest of this VM has called.
    let output = unsafe { host_calls::call::<_, F, PARAMS>(binding, memory, values) };
    let Some(output) = output else {
        return ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_HostFuncError };
    };
    for (index, value) in output.values().into_iter().enumerate() {
        // SAFETY:
        // - the function's type has as many results.
        unsafe { *returns.add(index) = ffi::WasmEdge_ValueGenI32(value) };
    }
    ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_Success }
}
