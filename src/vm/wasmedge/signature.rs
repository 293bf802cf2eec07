//! Types of imported and exported functions. Runs in builder and workers.
#![expect(unsafe_code, reason = "C API")]

use std::fmt;

use wasmedge_sys::ffi;

use cwasi_vm::trampoline::Number;

/// A function's name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) name: String,
    params: Vec<Option<Number>>,
    results: Vec<Option<Number>>,
}

impl Signature {
    /// The type of a live engine function.
    ///
    /// # Safety
    /// `ty` is alive.
    pub(super) unsafe fn new(name: String, ty: *const ffi::WasmEdge_FunctionTypeContext) -> Self {
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
            Self { name, params: numbers(params), results: numbers(returns) }
        }
    }

    /// True when it has this name and only `i32`s.
    pub(super) fn is(&self, name: &str, params: u32, results: u32) -> bool {
        let all_i32 = |types: &[Option<Number>], count: u32| {
            types.len() == count as usize && types.iter().all(|ty| *ty == Some(Number::I32))
        };
        self.name == name && all_i32(&self.params, params) && all_i32(&self.results, results)
    }

    /// Parameters and results when all of them are numbers.
    pub(super) fn numbers(&self) -> Option<(Vec<Number>, Vec<Number>)> {
        let all = |types: &[Option<Number>]| types.iter().copied().collect::<Option<Vec<_>>>();
        Some((all(&self.params)?, all(&self.results)?))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |types: &[Option<Number>]| {
            let names: Vec<_> = types
                .iter()
                .map(|ty| ty.map_or("other".to_owned(), |ty| format!("{ty:?}").to_lowercase()))
                .collect();
            names.join(", ")
        };
        write!(f, "({}) -> ({})", list(&self.params), list(&self.results))
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
