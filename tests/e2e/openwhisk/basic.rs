//! The ten cases of OpenWhisk's `BasicActionRunnerTests`. Code comes as a module or in an archive; `of_image` where the
//! image has it.

use serde_json::{Value, json};

use super::fixture::{Action, base64, module, payload};
use crate::scene;

/// Echoes stdin, of at most a page, from the export `niam`.
const NIAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 2)
    (func (export "niam")
        (i32.store (i32.const 0) (i32.const 65536))
        (i32.store (i32.const 4) (i32.const 65536))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

fn error(text: &str) -> Value {
    json!({ "error": text })
}

#[test]
fn handle_initialization_with_no_code_and_no_content() {
    let scene = scene("whisk-none");
    let missing = error("Missing main/no code to execute.");
    let action = Action::empty(&scene, "empty");
    assert_eq!(action.init(&payload("", "")), (403, missing.clone()));
    assert_eq!(action.post("/init", "{}"), (403, missing));
    assert_eq!(action.output().ends, (0, 0));
    for (id, body) in [("code", json!({ "value": payload("", "") })), ("content", json!({}))] {
        let action = Action::of_image(&scene, id);
        assert_eq!(action.post("/init", body.to_string()), (200, json!({ "ok": true })));
        assert_eq!(action.run(&json!({ "do": "nothing" })), (200, json!({})));
    }
}

#[test]
fn run_and_report_an_error_for_function_not_returning_a_json_object() {
    let scene = scene("whisk-text");
    let action = Action::empty(&scene, "text");
    action.init_code(&module(), "main");
    let ended = action.run(&json!({ "do": "text" }));
    assert_eq!(ended, (502, error("The action did not return a dictionary.")));
    let output = action.output();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str(), output.ends), ("", "", (1, 1)));
}

#[test]
fn fail_to_initialize_a_second_time() {
    let scene = scene("whisk-twice");
    let action = Action::empty(&scene, "twice");
    action.init_code(&module(), "main");
    let again = action.init(&payload(&base64(&module()), "main"));
    assert_eq!(again, (403, error("Cannot initialize the action more than once.")));
    let output = action.output();
    assert!(output.runtime.contains("Cannot initialize the action more than once."));
    assert_eq!(output.ends, (0, 0));
}

#[test]
fn invoke_non_standard_entry_point() {
    let scene = scene("whisk-niam");
    let action = Action::empty(&scene, "niam");
    let wasm = wat::parse_str(NIAM).unwrap();
    let (status, body) = action.init(&payload(&base64(&wasm), "other"));
    let text = body["error"].as_str().unwrap();
    assert!(status == 502 && text.contains("`other`") && text.contains("niam"), "{text}");
    action.init_code(&wasm, "niam");
    let hello = json!({ "string": "hello" });
    assert_eq!(action.run(&hello), (200, hello));
    let output = action.output();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str(), output.ends), ("", "", (1, 1)));
}

#[test]
fn echo_arguments_and_print_message_to_stdout_and_stderr() {
    let scene = scene("whisk-echo");
    let all = [
        json!({ "string": "hello" }),
        json!({ "string": "❄ ☃ ❄" }),
        json!({ "numbers": [42, 1] }),
        json!({ "boolean": true }),
        json!({ "object": { "a": "A" } }),
    ];
    for action in [Action::empty(&scene, "delivered"), Action::of_image(&scene, "of-image")] {
        let is_empty = action.init(&payload("", "main")).0 == 403;
        if is_empty {
            action.init_code(&module(), "main");
        }
        for parameters in &all {
            assert_eq!(action.run(parameters), (200, parameters.clone()));
        }
        let output = action.output();
        assert_eq!(output.stdout, "hello stdout\n".repeat(all.len()));
        assert_eq!(output.stderr, "hello stderr\n".repeat(all.len()));
        assert_eq!(output.ends, (all.len(), all.len()));
    }
}

#[test]
fn handle_unicode_in_source_input_params_logs_and_result() {
    let scene = scene("whisk-unicode");
    let action = Action::empty(&scene, "unicode");
    action.init_code(&module(), "main");
    let ended = action.run(&json!({ "do": "unicode", "delimiter": "❄" }));
    assert_eq!(ended, (200, json!({ "winter": "❄ ☃ ❄" })));
    let output = action.output();
    assert_eq!((output.stdout.as_str(), output.ends), ("❄ ☃ ❄\n", (1, 1)));
}

#[test]
fn export_environment_variables_before_initialization() {
    let scene = scene("whisk-variables");
    let env = json!({
        "ARRAY": ["a", "b"], "OBJECT": { "a": "A" }, "STRING": "xyz", "NUMBER": 3, "BOOL": true, "NULL": null
    });
    let run = scene.guest("variables", "action").env("STRING", "the container's");
    let action = Action::start(&scene, "variables", run);
    assert_eq!(action.init(&json!({ "name": "a", "env": env })).0, 200);
    let expected = json!({
        "ARRAY": r#"["a","b"]"#, "OBJECT": r#"{"a":"A"}"#, "STRING": "xyz", "NUMBER": "3", "BOOL": "true", "NULL": ""
    });
    assert_eq!(action.run(&json!({ "do": "variables" })), (200, expected));
}

#[test]
fn confirm_expected_environment_variables() {
    let scene = scene("whisk-properties");
    let run = scene.image(cwasi_testbed::scene::GUESTS, "properties").args(["none"]);
    let action = Action::start(&scene, "properties", run.env("__OW_API_HOST", "xyz"));
    action.init_code(&module(), "main");
    let mut expected = json!({
        "api_key": "abc", "namespace": "zzz", "action_name": "xxx", "activation_id": "iii", "deadline": "123"
    });
    let mut body = expected.clone();
    body["value"] = json!({ "do": "properties" });
    expected["api_host"] = json!("xyz");
    assert_eq!(action.post("/run", body.to_string()), (200, expected));
    let output = action.output();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("", ""));
}

#[test]
fn echo_a_large_input() {
    let scene = scene("whisk-large");
    let action = Action::empty(&scene, "large");
    action.init_code(&module(), "main");
    let large = json!({ "arg": "a".repeat(1_048_561) });
    assert!(action.run(&large) == (200, large));
}
