//! The components in Rust, Python, JavaScript and C that the documentation shows, compiled from its very text and run on
//! a real containerd: a call onwards, an error from it, small and large payloads, in fresh instances and in one
//! that is kept. And between core functions, on one node and on two.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cwasi_testbed::languages::Example;
use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::Scene;
use nix::sched::{CloneFlags, setns};

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1");
/// Sizes of payloads: none, within a frame, in shared memory, in huge pages.
const SIZES: [usize; 4] = [0, 5, 100_000, 3 << 20];
/// The port of the component that serves HTTP.
const PORT: u16 = 8080;
/// Lifetimes of instances, and the container that has each.
const ISOLATIONS: [(&str, &str); 2] = [("fresh", "request"), ("kept", "instance")];

/// The example's component, which is built once: each build by componentize-py differs, and its native code takes half
/// a minute.
fn build(example: Example) -> Vec<u8> {
    type Component = Arc<OnceLock<Vec<u8>>>;
    static BUILT: Mutex<Vec<(Example, Component)>> = Mutex::new(Vec::new());
    let component = {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = built.iter().find(|(which, _)| *which == example).map(|(_, one)| one.clone());
        found.unwrap_or_else(|| {
            built.push((example, Component::default()));
            built[built.len() - 1].1.clone()
        })
    };
    let build = || {
        let name = format!("{example:?}");
        let dir = Path::new(SHIM).ancestors().nth(2).unwrap().join("languages").join(name);
        let path = example.build(&dir).unwrap_or_else(|error| panic!("{error:#}"));
        std::fs::read(path).unwrap()
    };
    component.get_or_init(build).clone()
}

fn secondary(run: Run, name: &str) -> Run {
    run.annotation("cwasi.role", "secondary").annotation("cwasi.function", name)
}

/// The core function that ends each chain.
fn greeter(scene: &Scene, args: &[&str]) {
    scene.start(secondary(scene.guest("greeter", "actor").args(args.iter().copied()), "greeter"));
}

fn call(scene: &Scene, id: &str, target: &str, size: usize) -> Outcome {
    let rounds = if size > 65536 { "10" } else { "60" };
    let size = size.to_string();
    scene.run(scene.guest(id, "caller").args([target, rounds, &size, "reverse"]))
}

fn calls_of_every_size(scene: &Scene, id: &str, target: &str) {
    for size in SIZES {
        let outcome = call(scene, &format!("{id}-{size}"), target, size).success();
        let expected = format!("{size} bytes: as expected");
        assert!(outcome.text().contains(&expected), "{id}: {}", outcome.text());
    }
}

fn fails_with(scene: &Scene, id: &str, target: &str, says: &str) {
    let failed = call(scene, id, target, 5);
    assert_eq!(failed.code, 8, "{}", failed.stderr);
    assert!(failed.stderr.contains(says), "{says} missing in: {}", failed.stderr);
}

/// Calls the component whose code this is, in fresh instances and in one that is kept.
fn asks_onwards(scene_name: &str, example: Example) {
    let scene = Scene::new(SHIM, scene_name);
    let image = scene.import_module("ask", &build(example));
    for (name, isolation) in ISOLATIONS {
        let run = secondary(scene.image(&image, name), name);
        scene.start(run.annotation("cwasi.isolation", isolation));
    }
    fails_with(&scene, "nobody", "fresh", "no greeting: ");
    greeter(&scene, &["reverse"]);
    for (name, _) in ISOLATIONS {
        calls_of_every_size(&scene, name, name);
    }
    scene.remove("greeter");
    greeter(&scene, &["fail", "not today"]);
    for (name, _) in ISOLATIONS {
        let id = format!("{name}-failed");
        fails_with(&scene, &id, name, "no greeting: refused: not today");
    }
}

#[test]
fn the_component_in_rust_runs() {
    asks_onwards("ask-rust", Example::ComponentRust);
}

#[test]
fn the_component_in_python_runs() {
    asks_onwards("ask-python", Example::ComponentPython);
}

#[test]
fn the_component_in_javascript_runs() {
    asks_onwards("ask-js", Example::ComponentJavaScript);
}

#[test]
fn the_component_in_javascript_with_quickjs_runs() {
    asks_onwards("ask-quickjs", Example::ComponentQuickJs);
}

#[test]
fn the_component_in_c_runs() {
    asks_onwards("ask-c", Example::ComponentC);
}

/// The response to a request with this body on the container's port, head and all.
fn posted(pid: i32, body: &str) -> String {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    // A namespace belongs to a thread.
    let connecting = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).unwrap()
    });
    let mut stream = connecting.join().unwrap();
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
    greeter(&scene, &["reverse"]);
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

/// What the function in Go calls: its page calls it so.
const CALLED_BY_GO: &str = "reverse";

/// A function with this isolation, whose calls use this mode.
fn part(scene: &Scene, image: &str, (id, name): (&str, &str), isolation: &str, mode: &str) {
    let run = secondary(scene.image(image, id), name).annotation("cwasi.isolation", isolation);
    scene.start(run.annotation("cwasi.mode", mode));
}

#[test]
fn a_function_in_go_calls_components_which_call_a_function() {
    let scene = Scene::new(SHIM, "ask-chain");
    greeter(&scene, &["reverse"]);
    let next = scene.import_module("next", &build(Example::Go));
    for example in [Example::ComponentPython, Example::ComponentRust] {
        let ask = scene.import_module("ask", &build(example));
        for (name, isolation) in ISOLATIONS {
            part(&scene, &next, (name, name), isolation, "local");
            part(&scene, &ask, ("component", CALLED_BY_GO), isolation, "local");
            calls_of_every_size(&scene, &format!("{example:?}-{name}"), name);
            scene.remove("component");
            scene.remove(name);
        }
    }
}

#[test]
fn a_function_in_go_calls_components_on_another_node() {
    let Nodes { edge, cloud, .. } = &Nodes::new(SHIM, "ask-nodes");
    greeter(edge, &["reverse"]);
    let next = edge.import_module("next", &build(Example::Go));
    part(edge, &next, ("next", "next"), "instance", "networked");
    for example in [Example::ComponentPython, Example::ComponentRust] {
        let ask = cloud.import_module("ask", &build(example));
        let id = format!("{example:?}");
        part(cloud, &ask, ("component", CALLED_BY_GO), "request", "networked");
        calls_of_every_size(edge, &id, "next");
        edge.remove("greeter");
        greeter(edge, &["fail", "not today"]);
        fails_with(edge, &format!("{id}-failed"), "next", "no greeting: refused: not today");
        edge.remove("greeter");
        greeter(edge, &["reverse"]);
        cloud.remove("component");
    }
}
