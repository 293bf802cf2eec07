//! Valid modules of any shape, as they are changed before they are compiled (`coordinator::home`,
//! `vm::{state, wasi_calls, linked_calls}`).
#![no_main]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use cwasi_abi::{HOME_EXPORT, LINKED_CALLEES_EXPORT, RESERVED_EXPORTS, STATE_EXPORT};
use cwasi_coordinator::module::check;
use cwasi_fuzz::private::{expose, wrap};
use libfuzzer_sys::fuzz_target;
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemorySection, MemoryType, Module as Encoder, TypeSection, ValType,
};
use wasm_smith::{Config, Module};
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

/// Functions of WASI that a module may import: some leave something behind, some do so for some descriptors.
const WASI: [(&str, &[ValType]); 5] = [
    ("fd_close", &[ValType::I32]),
    ("fd_seek", &[ValType::I32, ValType::I64, ValType::I32, ValType::I32]),
    ("fd_write", &[ValType::I32, ValType::I32, ValType::I32, ValType::I32]),
    ("proc_exit", &[ValType::I32]),
    ("sched_yield", &[]),
];

/// Functions of a module that may be embedded.
const LINKED: [(&str, &[ValType], &[ValType]); 2] = [
    ("mix", &[ValType::I32, ValType::F64, ValType::I64], &[ValType::I64, ValType::F32]),
    ("run", &[], &[]),
];

static IMPORTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    for (index, (name, params)) in (0..).zip(WASI) {
        let results: &[ValType] = if name == "proc_exit" { &[] } else { &[ValType::I32] };
        types.ty().function(params.iter().copied(), results.iter().copied());
        imports.import("wasi_snapshot_preview1", name, EntityType::Function(index));
    }
    for (index, (name, params, results)) in (types.len()..).zip(LINKED) {
        types.ty().function(params.iter().copied(), results.iter().copied());
        imports.import("library", name, EntityType::Function(index));
    }
    let mut module = Encoder::new();
    module.section(&types).section(&imports);
    module.finish()
});

static EXPORTS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (mut types, mut functions) = (TypeSection::new(), FunctionSection::new());
    types.ty().function([], []);
    functions.function(0);
    let mut memories = MemorySection::new();
    let memory = MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    memories.memory(memory);
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export("_start", ExportKind::Func, 0);
    let mut body = Function::new([]);
    body.instructions().end();
    let mut code = CodeSection::new();
    code.function(&body);
    let mut module = Encoder::new();
    module.section(&types).section(&functions).section(&memories).section(&exports).section(&code);
    module.finish()
});

fn config(choice: u8) -> Config {
    Config {
        available_imports: (choice & 1 != 0).then(|| IMPORTS.clone()),
        exports: (choice & 2 != 0).then(|| EXPORTS.clone()),
        max_imports: if choice & 1 != 0 { 8 } else { 0 },
        max_memories: 1,
        max_memory32_bytes: 1 << 26,
        exceptions_enabled: false,
        extended_const_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        custom_page_sizes_enabled: false,
        wide_arithmetic_enabled: false,
        allow_start_export: true,
        ..Config::default()
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let Ok(module) = Module::new(config(*choice), &mut Unstructured::new(rest)) else { return };
    let wasm = module.to_bytes();
    if !is_valid(&wasm) {
        // wasm-smith has proposals of its own mind.
        return;
    }
    let exports = exports(&wasm);
    let is_reserved = exports.iter().any(|name| name.starts_with(RESERVED_EXPORTS));
    let Ok(checked) = check(&wasm, "m") else {
        assert!(is_reserved || *choice & 1 != 0, "a valid module is refused");
        return;
    };
    assert!(!is_reserved);
    let home = checked.with_home("m").expect("a valid module gets a way home").bytes;
    assert!(is_valid(&home));
    let mut expected = exports.clone();
    expected.insert(HOME_EXPORT.to_owned());
    assert_eq!(self::exports(&home), expected);
    for (wasm, exports) in [(&wasm, exports), (&home, expected)] {
        let exposed = expose(wasm).expect("no reserved names");
        if let Some(exposed) = &exposed {
            assert!(is_valid(exposed), "a state was exposed and the module broken");
            let now = self::exports(exposed);
            assert!(now.contains(STATE_EXPORT) && exports.is_subset(&now));
        }
        if let Some(wrapped) = wrap(exposed.as_ref().unwrap_or(wasm)) {
            assert!(is_valid(&wrapped), "linked functions got wrappers and the module broke");
            let now = self::exports(&wrapped);
            assert!(now.contains(LINKED_CALLEES_EXPORT) && exports.is_subset(&now));
        }
    }
});

fn is_valid(wasm: &[u8]) -> bool {
    Validator::new_with_features(WasmFeatures::WASM2).validate_all(wasm).is_ok()
}

fn exports(wasm: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for payload in Parser::new(0).parse_all(wasm) {
        if let Payload::ExportSection(section) = payload.expect("a valid module") {
            names.extend(section.into_iter().map(|it| it.expect("valid").name.to_owned()));
        }
    }
    names
}
