//! Tests of generated trampolines: the bytes are valid modules with the expected imports and exports.

use cwasi_abi::import;

use super::*;

fn valid(bytes: &[u8]) -> String {
    wasmparser::validate(bytes).expect("a trampoline is a valid module");
    wasmprinter::print_bytes(bytes).expect("and can be printed")
}

#[test]
fn a_link_trampoline_goes_home_after_every_call() {
    let function = |number, name: &str, params: &[Number], results: &[Number]| LinkedFunction {
        number,
        name: name.into(),
        params: params.to_vec(),
        results: results.to_vec(),
    };
    let text = valid(&link(
        "fn_utils",
        &[
            function(7, "mix", &[Number::I32, Number::F64], &[Number::I64, Number::F32]),
            function(8, "nothing", &[], &[]),
        ],
    ));
    assert!(text.contains(r#"(import "cwasi:embedded:fn_utils" "mix""#), "{text}");
    assert_eq!(text.matches("call_indirect").count(), 2, "{text}");
    assert!(text.contains("i32.const 7"), "{text}");
}

#[test]
fn a_function_may_have_any_name_that_is_not_reserved() {
    let function = |number, name: &str| LinkedFunction {
        number,
        name: name.into(),
        params: Vec::new(),
        results: Vec::new(),
    };
    let names = ["home", "", "enter", "memory", HOST];
    let functions: Vec<_> = (0..).zip(names).map(|(at, name)| function(at, name)).collect();
    let text = valid(&link("fn_utils", &functions));
    assert!(text.contains(r#"(export "home" (func"#), "{text}");
    assert!(HOME_TABLE.starts_with(cwasi_abi::RESERVED_EXPORTS));
}

#[test]
fn a_dispatch_trampoline_hands_every_host_function_through() {
    let callee = |name: &str, frees, lends_response, has_payload_buffer| {
        Some(DispatchCallee { name: name.to_owned(), frees, lends_response, has_payload_buffer })
    };
    for (frees, lends, buffer) in
        [(false, false, false), (true, false, false), (false, true, true), (true, true, false)]
    {
        let text = valid(&dispatch(&[
            callee("a", frees, lends, buffer),
            None,
            callee("b", true, false, false),
        ]));
        for (name, _) in import::SIGNATURES {
            assert!(text.contains(&format!(r#"(export "{name}""#)), "{name} missing in {text}");
        }
        let frees = 1 + usize::from(frees);
        assert_eq!(text.matches(r#""cwasi_free""#).count(), frees, "{text}");
        assert_eq!(text.matches(r#""cwasi_response""#).count(), usize::from(lends), "{text}");
    }
    valid(&dispatch(&[]));
}
