//! Trampolines made of names and types out of modules (`vm::trampoline`): each is a valid module.
#![no_main]

use std::collections::BTreeSet;

use arbitrary::Arbitrary;
use cwasi_abi::RESERVED_EXPORTS;
use cwasi_vm::trampoline::{DispatchCallee, LinkedFunction, Number, dispatch, link};
use libfuzzer_sys::fuzz_target;
use wasmparser::{Validator, WasmFeatures};

#[derive(Arbitrary, Debug)]
struct Names<'a> {
    embedded: &'a str,
    functions: Vec<(u32, &'a str, Vec<u8>, Vec<u8>)>,
    callees: Vec<Option<(&'a str, bool, bool)>>,
}

/// Parameters and results that a module may have are fewer.
const TYPES_MAX: usize = 100;

fuzz_target!(|names: Names<'_>| {
    let numbers = |kinds: &[u8]| -> Vec<Number> {
        let all = [Number::I32, Number::I64, Number::F32, Number::F64];
        kinds.iter().take(TYPES_MAX).map(|kind| all[usize::from(*kind) % all.len()]).collect()
    };
    let mut seen = BTreeSet::new();
    let functions: Vec<LinkedFunction> = names
        .functions
        .iter()
        // A trampoline gets each name once, and none that is reserved: no checked module exports one.
        .filter(|(_, name, ..)| !name.starts_with(RESERVED_EXPORTS) && seen.insert(*name))
        .map(|(number, name, params, results)| LinkedFunction {
            number: *number,
            name: (*name).to_owned(),
            params: numbers(params),
            results: numbers(results),
        })
        .collect();
    validate(&link(names.embedded, &functions));
    let callee = |(name, frees, lends_response): (&str, bool, bool)| DispatchCallee {
        name: name.to_owned(),
        frees,
        lends_response,
        has_payload_buffer: lends_response,
    };
    let callees: Vec<_> = names.callees.iter().map(|it| it.map(callee)).collect();
    validate(&dispatch(&callees));
});

fn validate(trampoline: &[u8]) {
    let mut validator = Validator::new_with_features(WasmFeatures::WASM2);
    if let Err(error) = validator.validate_all(trampoline) {
        panic!("a trampoline that is no valid module: {error}");
    }
}
