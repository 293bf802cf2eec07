//! Results of the engine's C API. Runs in builder and workers.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::CStr;

use wasmedge_sys::ffi;

/// A result of the engine that is not success.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineCode(ffi::WasmEdge_Result);

/// The engine's "a guest ended itself", which is no error.
const TERMINATED: u32 = ffi::WasmEdge_ErrCode_Terminated;
/// The trap of an indirect call through an element that is null.
const UNINITIALIZED_ELEMENT: u32 = ffi::WasmEdge_ErrCode_UninitializedElement;

impl EngineCode {
    /// True when the guest called `proc_exit`.
    pub(super) fn is_exit(self) -> bool {
        self.code() == TERMINATED
    }

    pub(super) fn is_uninitialized_element(self) -> bool {
        self.code() == UNINITIALIZED_ELEMENT
    }

    fn code(self) -> u32 {
        // SAFETY:
        // - reads a value.
        unsafe { ffi::WasmEdge_ResultGetCode(self.0) }
    }
}

impl std::fmt::Display for EngineCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY:
        // - returns a NUL-terminated string constant of the library.
        let text = unsafe { CStr::from_ptr(ffi::WasmEdge_ResultGetMessage(self.0)) };
        f.write_str(&text.to_string_lossy())
    }
}

/// `Ok` for success only: `WasmEdge_ResultOK` takes `proc_exit` for success too.
pub(super) fn check(result: ffi::WasmEdge_Result) -> Result<(), EngineCode> {
    if result.Code == ffi::WasmEdge_ErrCode_Success { Ok(()) } else { Err(EngineCode(result)) }
}
