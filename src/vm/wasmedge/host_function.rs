//! A host function in the engine: bound to a VM, called with the guest's memory. Runs in a worker.
//!
//! Invariant: no re-entry. Nothing here calls the engine, except to find and measure linear memories.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use cwasi_abi::Errno;
use cwasi_host_functions::Host;
use wasmedge_sys::ffi;

use super::handles::{FunctionType, ModuleInstance, Name};
use super::host_binding::HostBinding;
use super::memory::RawMemory;
use cwasi_vm::engine::VmError;
use cwasi_vm::trampoline::Begun;

/// The arguments of one call of a host function.
pub(super) struct Environment<'a> {
    pub(super) host: &'a mut Host,
    pub(super) binding: &'a HostBinding,
    /// The calling guest's memory; empty without [`Bound::MEMORY`].
    pub(super) memory: RawMemory,
}

/// A host function of `i32`s.
pub(super) trait Bound<const PARAMS: usize> {
    /// False: a trampoline calls it, which has no memory.
    const MEMORY: bool = true;
    type Output: Output;

    fn call(env: &mut Environment<'_>, params: [u32; PARAMS]) -> Result<Self::Output, Errno>;
}

/// What a host function returns: `i32`s.
pub(super) trait Output: Sized {
    const COUNT: u32;

    /// The output for an error; `None` for a trap of the guest.
    fn failed(errno: Errno) -> Option<Self>;

    /// [`Self::COUNT`] values.
    fn values(self) -> impl IntoIterator<Item = i32>;
}

impl Output for () {
    const COUNT: u32 = 0;

    fn failed(_: Errno) -> Option<Self> {
        None
    }

    fn values(self) -> impl IntoIterator<Item = i32> {
        []
    }
}

impl Output for i32 {
    const COUNT: u32 = 1;

    fn failed(errno: Errno) -> Option<Self> {
        Some(errno.code())
    }

    fn values(self) -> impl IntoIterator<Item = i32> {
        [self]
    }
}

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

/// A host function: name, number of `i32` parameters and results, implementation.
pub(super) struct HostFunction {
    pub(super) name: &'static str,
    pub(super) params: u32,
    pub(super) results: u32,
    entry: HostFunctionEntry,
}

impl HostFunction {
    pub(super) const fn new<const PARAMS: usize, F: Bound<PARAMS>>(name: &'static str) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "at most 6")]
        Self { name, params: PARAMS as u32, results: F::Output::COUNT, entry: bound::<PARAMS, F> }
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
    binding: &HostBinding,
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
unsafe extern "C" fn bound<const PARAMS: usize, F: Bound<PARAMS>>(
    data: *mut c_void,
    frame: *const ffi::WasmEdge_CallingFrameContext,
    params: *const ffi::WasmEdge_Value,
    returns: *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result {
    // SAFETY:
    // - `data` is the binding that `bind` bound, alive while a guest runs.
    let binding = unsafe { &*data.cast::<HostBinding>() };
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
    // A panic must not unwind through the engine's frames.
    let called = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY:
        // - host functions do not nest, so this is the only reference.
        let host = unsafe { binding.host() }.ok_or(Errno::Internal)?;
        F::call(&mut Environment { host, binding, memory }, values)
    }));
    let result = called.unwrap_or(Err(Errno::Internal));
    let Some(output) = result.map_or_else(F::Output::failed, Some) else {
        return ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_HostFuncError };
    };
    for (index, value) in output.values().into_iter().enumerate() {
        // SAFETY:
        // - the function's type has as many results.
        unsafe { *returns.add(index) = ffi::WasmEdge_ValueGenI32(value) };
    }
    ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_Success }
}
