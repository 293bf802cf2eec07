//! Functions with the ABI of the paper's prototype (2023), on a real containerd: they call each other in all modes, and
//! functions of today.

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;

use crate::SHIM;

const ANSWER: &str = "hello world from from fnB socket server. Result from Module B : ";

fn old(scene: &Scene, container: &str) -> Run {
    scene.guest(container, "prototype").annotation("cwasi.compat", "2023")
}

/// Named as the prototype names a callee: after its file.
fn callee(scene: &Scene, container: &str, name: &str) -> Run {
    old(scene, container)
        .annotation("cwasi.secondary.function", "true")
        .annotation("cwasi.function", name)
}

fn call(scene: &Scene, container: &str, target: &str, payload: &str) -> Outcome {
    scene.run(old(scene, container).args([target, payload]))
}

/// The message that a call sends.
fn message(target: &str, payload: &str) -> String {
    format!(
        r#"{{"source_channel":"prototype.wasm","target_channel":"{target}","payload":"{payload}"}}"#
    )
}

fn answer(target: &str, payload: &str) -> String {
    format!("{ANSWER}{}\n", message(target, payload).len())
}

#[test]
fn functions_of_the_prototype_call_each_other() {
    let scene = Scene::new(SHIM, "proto-local");
    scene.start(callee(&scene, "b", "func_b"));
    for (index, payload) in ["x", "é and more", &"long ".repeat(20_000)].iter().enumerate() {
        let outcome = call(&scene, &format!("a-{index}"), "func_b.wasm", payload);
        assert_eq!(outcome.success().text(), answer("func_b.wasm", payload));
    }
    let many = scene.run(old(&scene, "many").args(["func_b.wasm", "1000", "3"]));
    assert_eq!(many.success().text(), answer("func_b.wasm", &"x".repeat(1000)).repeat(3));
    // A callee that calls.
    let nobody = call(&scene, "nobody", "func_b.wasm", "!next");
    assert!(nobody.stderr.contains("func_connect: "), "{}", nobody.stderr);
    assert!(nobody.stderr.contains("next"), "{}", nobody.stderr);
    scene.start(callee(&scene, "next", "next"));
    let outcome = call(&scene, "next-a", "/func_b.wasm", "!next");
    assert_eq!(outcome.success().text(), answer("/func_b.wasm", "!next"));
}

#[test]
fn they_call_functions_of_today_and_are_called_by_them() {
    let scene = Scene::new(SHIM, "proto-today");
    let server = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(server.annotation("cwasi.function", "echo"));
    scene.start(callee(&scene, "b", "func_b"));
    let outcome = call(&scene, "a", "echo.wasm", "hello");
    assert_eq!(outcome.success().text(), format!("{}\n", message("echo.wasm", "hello")));
    let outcome = scene.run(scene.guest("p", "probe").args(["call", "func_b", "abc"]));
    assert_eq!(outcome.success().text(), format!("{ANSWER}3"));
}

#[test]
fn they_call_each_other_on_another_node() {
    let nodes = Nodes::joined(SHIM, "proto-nodes");
    nodes.cloud.start(callee(&nodes.cloud, "b", "func_b"));
    let outcome = call(&nodes.edge, "a", "func_b.wasm", "far");
    assert_eq!(outcome.success().text(), answer("func_b.wasm", "far"));
}

/// The prototype links a module that another one imports from.
#[test]
fn a_function_embeds_what_it_imports_and_calls_others() {
    let scene = Scene::new(SHIM, "proto-embeds");
    scene.start(callee(&scene, "b", "func_b").annotation("cwasi.workflow", "w"));
    let library = r#"(module
        (func (export "twice") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2))))"#;
    let library = scene.import_module("library", &wat::parse_str(library).unwrap());
    let message = message("func_b.wasm", "x");
    // Exits with the answer's length.
    let caller = format!(
        r#"(module
            (import "library" "twice" (func $twice (param i32) (result i32)))
            (import "cwasi_export" "func_connect" (func $connect (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 64) {message:?})
            (func (export "_start")
                (if (i32.ne (call $twice (i32.const 21)) (i32.const 42)) (then unreachable))
                (call $exit (call $connect (i32.const 64) (i32.const {})))))"#,
        message.len()
    );
    let image = scene.import_module("caller", &wat::parse_str(caller).unwrap());
    let run = scene.image(&image, "a").annotation("cwasi.compat", "2023");
    let run = run.annotation("cwasi.workflow", "w");
    let outcome = scene.run(run.annotation("cwasi.embed", &format!("library={library}")));
    let answer = answer("func_b.wasm", "x");
    assert_eq!(outcome.code, i32::try_from(answer.trim().len()).unwrap(), "{}", outcome.stderr);
}

#[test]
fn what_goes_wrong_is_said() {
    let scene = Scene::new(SHIM, "proto-wrong");
    scene.start(callee(&scene, "b", "func_b"));
    for (payload, says) in [
        ("!trap", "func_b: trap in `cwasi_function`: unreachable"),
        ("!exit", "func_b called exit(3) instead of answering"),
        ("!outside", "func_connect: its message lies outside of its memory"),
    ] {
        let outcome = call(&scene, &payload[1..], "func_b.wasm", payload);
        assert_ne!(outcome.code, 0, "{payload}");
        assert!(outcome.stderr.contains(says), "{payload}: {}", outcome.stderr);
    }
    let outcome = call(&scene, "json", "func_b.wasm", r#"""#);
    assert!(outcome.stderr.contains("its message is not JSON"), "{}", outcome.stderr);
    // The callee has survived all of this.
    let outcome = call(&scene, "again", "func_b.wasm", "x");
    assert_eq!(outcome.success().text(), answer("func_b.wasm", "x"));
}

#[test]
fn without_the_annotation_it_is_off() {
    let scene = Scene::new(SHIM, "proto-off");
    let outcome = scene.run(scene.guest("a", "prototype").args(["func_b.wasm", "x"]));
    assert!(outcome.stderr.contains("set cwasi.compat=2023"), "{}", outcome.stderr);
    let wasmedge = old(&scene, "b").annotation("cwasi.engine", "wasmedge");
    let outcome = scene.run(wasmedge.args(["func_b.wasm", "x"]));
    assert!(outcome.stderr.contains("cannot have cwasi.compat=2023"), "{}", outcome.stderr);
    let today = scene.guest("c", "server").annotation("cwasi.compat", "2023");
    let outcome = scene.run(today.annotation("cwasi.role", "primary"));
    assert!(outcome.stderr.contains("cwasi.role=secondary"), "{}", outcome.stderr);
}
