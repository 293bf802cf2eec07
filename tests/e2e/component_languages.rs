//! The components in Rust, Python, JavaScript and C that the documentation shows, compiled from its very text and run on
//! a real containerd, as [`super::languages`] runs functions.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::{Read as _, Write as _};

use cwasi_testbed::languages::Example;
use cwasi_testbed::netns::connect_to;
use cwasi_testbed::scene::Scene;

use super::languages::{Onwards, Throws, build, calls_onwards, secondary, start_callee};
use crate::SHIM;
use crate::exceptions::SECRET;

/// The port of the component that serves HTTP.
const PORT: u16 = 8080;
const GREETER: Onwards = Onwards {
    callee: "greeter",
    is_missing: "no greeting: ",
    fails: "no greeting: refused: not today",
};

/// What the engine tells of an exception that is no text.
fn throws_in_javascript(said: &'static str) -> Throws {
    Throws {
        before: "    let greeting;\n",
        inserted: "    if (payload.length === 8) throw new Error(\"SECRET\");\n",
        said,
    }
}

#[test]
fn the_component_in_rust_runs() {
    let throws = Throws {
        before: "        let greeting = calls::call_bytes(",
        inserted: "        assert!(payload.len() != 8, \"SECRET\");\n",
        said: "trap in",
    };
    calls_onwards("ask-rust", Example::ComponentRust, &GREETER, &throws);
}

#[test]
fn the_component_in_python_runs() {
    let throws = Throws {
        before: "        try:\n            greeting",
        inserted: "        if len(payload) == 8:\n            raise ValueError(\"SECRET\")\n",
        said: "trap in",
    };
    calls_onwards("ask-python", Example::ComponentPython, &GREETER, &throws);
}

#[test]
fn the_component_in_javascript_runs() {
    calls_onwards(
        "ask-js",
        Example::ComponentJavaScript,
        &GREETER,
        &throws_in_javascript("trap in"),
    );
}

#[test]
fn the_component_in_javascript_with_quickjs_runs() {
    calls_onwards(
        "ask-quickjs",
        Example::ComponentQuickJs,
        &GREETER,
        &throws_in_javascript(SECRET),
    );
}

#[test]
fn the_component_in_c_runs() {
    let throws = Throws {
        before: "    function_string_set(&greeter, \"greeter\");\n",
        inserted: "    if (payload->len == 8) __builtin_trap();\n",
        said: "trap in",
    };
    calls_onwards("ask-c", Example::ComponentC, &GREETER, &throws);
}

/// The response to a request with this body on the container's port, head and all.
fn posted(pid: i32, body: &str) -> String {
    let mut stream = connect_to(pid, PORT);
    let length = body.len();
    let head = "POST /hello HTTP/1.1\r\nhost: pod\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn the_http_component_in_python_serves_requests_and_calls() {
    let scene = Scene::new(SHIM, "ask-http");
    let image = scene.import_module("hello", &build(Example::ComponentHttp));
    let run = secondary(scene.image(&image, "hello"), "hello");
    scene.start(run.annotation("cwasi.http", &PORT.to_string()));
    let pid = scene.pid("hello");
    let refused = posted(pid, "stressed");
    assert!(refused.starts_with("HTTP/1.1 502 ") && refused.contains("greeter"), "{refused}");
    start_callee(&scene, GREETER.callee, &["reverse"]);
    let response = posted(pid, "stressed");
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.contains("content-type: text/plain\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\ndesserts"), "{response}");
    // Many reads and writes.
    let body = "ab".repeat(100_000);
    let response = posted(pid, &body);
    assert!(response.ends_with(&format!("\r\n\r\n{}", "ba".repeat(100_000))));
    let called = scene.run(scene.guest("p", "probe").args(["call", "hello", "stressed"]));
    assert_eq!(called.success().text(), "desserts");
}
