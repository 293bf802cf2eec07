//! Types of imported and exported functions in the engine. Runs in builder and workers.
#![expect(unsafe_code, reason = "C API")]

use wasmedge_sys::ffi;

use cwasi_vm::interface::Signature;
use cwasi_vm::trampoline::Number;

/// Name and type of a live engine function.
///
/// # Safety
/// `ty` is alive.
pub(super) unsafe fn signature(
    name: String,
    ty: *const ffi::WasmEdge_FunctionTypeContext,
) -> Signature {
    // SAFETY:
    // - alive, says the caller; each list has room for the length that the engine gave.
    unsafe {
        let params = ffi::WasmEdge_FunctionTypeGetParametersLength(ty);
        let results = ffi::WasmEdge_FunctionTypeGetReturnsLength(ty);
        let i32_type = ffi::WasmEdge_ValTypeGenI32();
        let mut params = vec![i32_type; params as usize];
        let mut returns = vec![i32_type; results as usize];
        let len = |list: &Vec<_>| u32::try_from(list.len()).unwrap_or(u32::MAX);
        ffi::WasmEdge_FunctionTypeGetParameters(ty, params.as_mut_ptr(), len(&params));
        ffi::WasmEdge_FunctionTypeGetReturns(ty, returns.as_mut_ptr(), results);
        let numbers = |types: Vec<_>| types.into_iter().map(number).collect();
        Signature { name, params: numbers(params), results: numbers(returns) }
    }
}

fn number(ty: ffi::WasmEdge_ValType) -> Option<Number> {
    // SAFETY:
    // - these read a value.
    unsafe {
        if ffi::WasmEdge_ValTypeIsI32(ty) {
            Some(Number::I32)
        } else if ffi::WasmEdge_ValTypeIsI64(ty) {
            Some(Number::I64)
        } else if ffi::WasmEdge_ValTypeIsF32(ty) {
            Some(Number::F32)
        } else if ffi::WasmEdge_ValTypeIsF64(ty) {
            Some(Number::F64)
        } else {
            None
        }
    }
}
