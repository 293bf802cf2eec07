//! End to end on a real containerd: an error, an exception, a panic, a trap and an exit of a function are one to HTTP
//! clients. Its log has the text, under the id that the client has. [`crate::languages`] lets functions in other
//! languages throw.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use cwasi_testbed::netns::connect_to;
use cwasi_testbed::paths::component_guest;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, wait_for};

use crate::languages::secondary;
use crate::scene;

const PORT: u16 = 8080;
pub const SECRET: &str = "password-of-the-operator";

/// The response to a POST, head and all.
fn post(pid: i32, path: &str, body: &str) -> String {
    let mut stream = connect_to(pid, PORT);
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: pod\r\nconnection: close");
    write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn log_of(scene: &Scene, name: &str) -> PathBuf {
    scene.node.path().join(format!("{name}.log"))
}

/// The function `name` with a port and a log that [`fails_in_one_shape`] reads.
pub fn with_port(scene: &Scene, name: &str, run: Run) -> Run {
    let uri = format!("file://{}", log_of(scene, name).display());
    run.annotation("cwasi.http", &PORT.to_string()).flag("--log-uri").flag(uri)
}

/// Lets a function fail by a request: path and body. `said` is in the line of its log that names the call.
pub fn fails_in_one_shape(scene: &Scene, name: &str, request: (&str, &str), said: &str) {
    let log = log_of(scene, name);
    let response = post(scene.pid(name), request.0, request.1);
    let header = |key: &str| {
        let mut lines = response.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).unwrap_or_default()
    };
    let id = header("x-call-id");
    let text = format!("\r\n\r\nthe function failed: its log says why, under the id {id}\n");
    assert!(response.starts_with("HTTP/1.1 500 "), "{name}: {response}");
    assert!(response.ends_with(&text), "{name}: {response}");
    assert!(!response.contains(SECRET), "{name}: {response}");
    assert!(["failed", "trapped"].contains(&header("cwasi-errno")), "{name}: {response}");
    let id = format!("  invocation={id}");
    wait_for(&format!("{said} in the log of {name}"), || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let is_there = text.lines().any(|line| line.contains(&id) && line.contains(said));
        is_there.then_some(())
    });
}

#[test]
fn errors_panics_traps_and_exits_are_one_to_clients() {
    let scene = scene("one-shape");
    let fail = format!("!fail {SECRET}");
    for (name, guest, args, body, said) in [
        ("panics", "actor", &["panic"][..], "x", "trap in"),
        ("fails", "actor", &["fail", SECRET], "x", SECRET),
        ("raw-fails", "server", &[], fail.as_str(), SECRET),
        ("raw-traps", "server", &[], "!trap", "unreachable"),
        ("raw-exits", "server", &[], "!exit 3", "exit(3)"),
        ("command-fails", "filter", &[], &fail, SECRET),
        ("command-traps", "filter", &[], "!trap", "unreachable"),
    ] {
        let run = scene.guest(name, guest).args(args.iter().copied());
        scene.start(with_port(&scene, name, secondary(run, name)));
        fails_in_one_shape(&scene, name, ("/", body), said);
    }
    for (name, component, path, body, said) in [
        ("component-fails", "server", "/", fail.as_str(), SECRET),
        ("component-traps", "server", "/", "!trap", "trap in"),
        ("http-is-silent", "http", "/none", "", "without a response"),
        ("http-traps", "http", "/trap", "", "trap in"),
        ("wasi-3-fails", "async_http", "/error", "", "the handler failed"),
        ("wasi-3-traps", "async_http", "/trap", "", "trap in"),
    ] {
        let bytes = fs::read(component_guest(component)).unwrap();
        let image = scene.import_module(&format!("component-{component}"), &bytes);
        let run = scene.image(&image, name).args(["/m.wasm"]);
        scene.start(with_port(&scene, name, secondary(run, name)));
        fails_in_one_shape(&scene, name, (path, body), said);
    }
}
