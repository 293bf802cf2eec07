//! Components and core modules call each other on one node.

use std::path::Path;

use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::paths::component_guest;
use cwasi_testbed::scene::Scene;

use super::{SIZES, call, component, probe, secondary, serving};
use crate::scene;

fn folder_of(scene: &Scene) -> &Path {
    scene.node.path()
}

#[test]
fn each_kind_of_component_answers_a_core_module() {
    let scene = scene("comp-kinds");
    for name in ["server", "relay", "http", "command"] {
        scene.start(secondary(&scene, name, name));
    }
    scene.secondary("sink", "filter");
    for (target, payload, response) in [
        ("server", "hello", "hello"),
        ("server", "!context caller", "probe"),
        ("relay", "hello", "HELLO"),
        ("http", "hello", "POST / hello"),
        ("command", "hello", "hello"),
        ("command", "!args", "/m.wasm"),
    ] {
        assert_eq!(call(&scene, "p", target, payload), response, "{target} {payload}");
    }
}

#[test]
fn a_command_is_a_primary_with_its_containers_streams_arguments_and_variables() {
    let scene = scene("comp-primary");
    let run = |id: &str, order: &str| {
        let run = component(&scene, id, "command").args(["two"]).env("A", "b=c");
        scene.run(run.stdin(order.as_bytes().to_vec()))
    };
    assert_eq!(run("echo", "hello").success().text(), "hello");
    assert_eq!(run("args", "!args").success().text(), "/m.wasm two");
    assert_eq!(run("env", "!env A").success().text(), "b=c");
    assert_eq!(run("sleep", "!sleep 20").success().text(), "slept");
    let exited = run("exit", "!exit 3");
    assert_eq!(
        (exited.code, &*exited.guest_stderr()),
        (1, "leaving\n"),
        "WASI 0.2 has no other code"
    );
    let trapped = run("panic", "!panic");
    assert_eq!(trapped.code, 134, "{}", trapped.stderr);
    assert!(trapped.stderr.contains("as requested"), "{}", trapped.stderr);
    let handler = scene.run(component(&scene, "handler", "server"));
    assert_ne!(handler.code, 0);
    assert!(handler.stderr.contains("start it with cwasi.role=secondary"), "{}", handler.stderr);
}

#[test]
fn a_component_has_the_files_of_its_image_and_its_working_directory() {
    let scene = scene("comp-image-files");
    let archive = folder_of(&scene).join("files.tar");
    let mut rootfs = Rootfs::default();
    rootfs.file(&component_guest("command"), "/app/m.wasm").unwrap();
    rootfs.bytes(b"hello", "/app/greeting").unwrap();
    let start = Start { entrypoint: vec!["/app/m.wasm".into()], ..Start::default() };
    rootfs.write("localhost/files:test", &start, &archive).unwrap();
    scene.import(&archive);
    let run = |id: &str, order: &str| {
        let run = scene.image("localhost/files:test", id).flag("--cwd").flag("/app");
        scene.run(run.stdin(order.as_bytes())).success().text()
    };
    assert_eq!(run("absolute", "!read /app/greeting"), "hello");
    assert_eq!(run("relative", "!read greeting"), "hello");
    assert_eq!(run("list", "!ls /app"), "greeting m.wasm");
    assert!(run("write", "!write /app/new").starts_with("error: "), "the image is read-only");
}

#[test]
fn a_component_calls_core_modules_and_components() {
    let scene = scene("comp-calls");
    scene.start(secondary(&scene, "server", "server"));
    scene.start(secondary(&scene, "other", "server"));
    scene.start(secondary(&scene, "command", "command"));
    scene.secondary("core", "server");
    scene.secondary("filter", "filter");
    for (order, response) in [
        ("!call core hello", "hello"),
        ("!call filter hello", "HELLO"),
        ("!call core !call other !call filter deep", "DEEP"),
        ("!call other !context caller", "server"),
        ("!fan filter a b c", "A B C"),
    ] {
        assert_eq!(call(&scene, "p", "server", order), response, "{order}");
    }
    for target in ["core", "other", "command"] {
        for size in SIZES {
            let order = format!("!send {target} {size}");
            let response = call(&scene, &format!("{target}-{size}"), "server", &order);
            assert_eq!(response, format!("{size} bytes came back"), "{target}");
        }
    }
}

#[test]
fn a_command_calls_as_a_primary_and_as_a_secondary() {
    let scene = scene("comp-command-calls");
    scene.secondary("core", "server");
    scene.start(secondary(&scene, "server", "server"));
    scene.start(secondary(&scene, "command", "command"));
    for (index, (order, response)) in [
        ("!call core hello", "hello"),
        ("!call server !context caller", "m"),
        ("!call command !call core deep", "deep"),
        ("!call core !fail no wheels", "no wheels"),
        ("!call server !trap", "error: ErrorCode::Trapped: "),
        ("!call nobody x", "error: ErrorCode::NoSuchFunction: "),
    ]
    .into_iter()
    .enumerate()
    {
        let run = component(&scene, &format!("p{index}"), "command").stdin(order.as_bytes());
        let text = scene.run(run).success().text();
        assert!(text.contains(response), "{order}: {text}");
    }
}

#[test]
fn parts_of_a_group_go_to_components_and_come_from_them() {
    let scene = scene("comp-group");
    scene.start(secondary(&scene, "merge", "group").annotation("cwasi.fan-in", "2"));
    scene.start(secondary(&scene, "server", "server"));
    scene
        .start(serving(scene.guest("core", "merger"), "core").annotation("cwasi.fan-in", "caller"));
    let gather = scene.guest("gather", "gather").args(["some", "merge", "k", "2", "0", "1"]);
    let text = scene.run(gather).success().text();
    assert_eq!(text.matches("2 of 2: 0=").count(), 2, "{text}");
    let response = call(&scene, "p", "server", "!parts merge c 2");
    assert_eq!(response, "2 of 2: 0=c0 1=c1");
    let response = call(&scene, "q", "server", "!parts core c 3");
    assert_eq!(response.lines().filter(|line| line.contains(" 2 ")).count(), 3, "{response}");
    assert!(response.ends_with("missing \n"), "{response}");
    let alone = probe(&scene, "r", &["call", "merge", "alone"]);
    assert!(alone.code != 0 && alone.stderr.contains("merge"), "{}", alone.stderr);
}

#[test]
fn a_trace_goes_through_components() {
    let scene = scene("comp-trace");
    scene.secondary("core", "server");
    // A second worker for the call back to it.
    scene.start(secondary(&scene, "server", "server").annotation("cwasi.concurrency", "2"));
    let context = "!call server !call core !context traceparent";
    let run = scene.guest("p", "probe").args(["call", "server", context]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let run = run.annotation("cwasi.trace", &format!("00-{trace}-b7ad6b7169203331-01"));
    let seen = scene.run(run).success().text();
    assert!(seen.starts_with(&format!("00-{trace}-")), "{seen}");
}
