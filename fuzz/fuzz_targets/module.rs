//! Modules from images: what is refused, what is dropped, what is added, what counts (`coordinator::{module, home, limits}`).
#![no_main]

use cwasi_config::CompileConfig;
use cwasi_coordinator::home::append_home;
use cwasi_coordinator::module::check;
use cwasi_fuzz::memory::{MODULE, bounded_beside};
use cwasi_fuzz::private::{expose, is_within};
use libfuzzer_sys::fuzz_target;
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

fuzz_target!(|data: &[u8]| {
    let with_home = bounded_beside(MODULE, data, 512, || append_home(data));
    let exposed = bounded_beside(MODULE, data, 512, || expose(data));
    let Ok(checked) = bounded_beside(MODULE, data, 512, || check(data, "m")) else {
        assert!(!matches!(exposed, Ok(Some(_))) || is_valid(data), "an invalid module is exposed");
        return;
    };
    if checked.is_component {
        // It is not changed.
        assert!(Validator::new().validate_all(&checked.bytes).is_ok() && checked.bytes == data);
        return;
    }
    assert!(is_valid(&checked.bytes) && !has_native(&checked.bytes));
    assert!(checked.bytes == data || checked.dropped_native);
    assert!(is_valid(&with_home.expect("a checked module gets a way home")));
    let exports = checked.exports.clone();
    let bytes = checked.bytes.clone();
    let home = checked.with_home("m").expect("a checked module gets a way home");
    assert!(is_valid(&home.bytes) && home.exports == exports);
    for wasm in [&bytes, &home.bytes] {
        if let Ok(Some(exposed)) = expose(wasm) {
            assert!(is_valid(&exposed));
        }
    }
    limits(&bytes);
});

fn is_valid(wasm: &[u8]) -> bool {
    Validator::new_with_features(WasmFeatures::WASM2).validate_all(wasm).is_ok()
}

fn payloads(wasm: &[u8]) -> impl Iterator<Item = Payload<'_>> {
    Parser::new(0).parse_all(wasm).map(|payload| payload.expect("a valid module"))
}

fn has_native(wasm: &[u8]) -> bool {
    payloads(wasm).any(|it| matches!(it, Payload::CustomSection(it) if it.name() == "wasmedge"))
}

/// A module passes with what it has, and not with one function or one local variable less.
fn limits(wasm: &[u8]) {
    let (mut functions, mut locals) = (0, 0);
    for payload in payloads(wasm) {
        if let Payload::CodeSectionEntry(body) = payload {
            functions += 1;
            let groups = body.get_locals_reader().expect("a valid module").into_iter();
            locals += groups.map(|it| u64::from(it.expect("a valid module").0)).sum::<u64>();
        }
    }
    let most = u64::MAX;
    let all =
        CompileConfig { functions, types: most, locals, function_size: most, ..Default::default() };
    assert!(is_within(wasm, &all));
    if let Some(functions) = functions.checked_sub(1) {
        assert!(!is_within(wasm, &CompileConfig { functions, ..all.clone() }));
    }
    if let Some(locals) = locals.checked_sub(1) {
        assert!(!is_within(wasm, &CompileConfig { locals, ..all }));
    }
}
