//! Components and core modules call each other on one node.

use cwasi_testbed::scene::Scene;

use crate::{LARGE, SHIM, SIZES, call, comes_back, component, probe, secondary, serving};

fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
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
    assert_eq!((exited.code, &*exited.stderr), (1, "leaving\n"), "WASI 0.2 has no other code");
    let trapped = run("panic", "!panic");
    assert_eq!(trapped.code, 134, "{}", trapped.stderr);
    assert!(trapped.stderr.contains("as requested"), "{}", trapped.stderr);
    let handler = scene.run(component(&scene, "handler", "server"));
    assert_ne!(handler.code, 0);
    assert!(handler.stderr.contains("start it with cwasi.role=secondary"), "{}", handler.stderr);
}

#[test]
fn a_component_has_the_files_of_its_container() {
    let scene = scene("comp-files");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "text").unwrap();
    let run = |id: &str, order: &str| {
        let run = component(&scene, id, "command").mount(folder.path(), "/data", "rw");
        scene.run(run.stdin(order.as_bytes().to_vec())).success().text()
    };
    assert_eq!(run("read", "!read /data/file"), "text");
    assert_eq!(run("write", "!write /data/new"), "done");
    assert_eq!(std::fs::read_to_string(folder.path().join("new")).unwrap(), "written");
    assert!(run("refused", "!read /proc/self/environ").starts_with("error: "));
}

#[test]
fn payloads_of_a_core_module_come_back_unchanged() {
    let scene = scene("comp-sizes");
    for name in ["server", "relay", "command"] {
        scene.start(secondary(&scene, name, name));
    }
    scene.secondary("sink", "server");
    for target in ["server", "relay", "command"] {
        for size in SIZES {
            comes_back(&scene, &format!("{target}-{size}"), target, size);
        }
    }
}

#[test]
fn a_payload_is_passed_on_with_less_memory_than_it_has() {
    let scene = scene("comp-large");
    scene.start(secondary(&scene, "relay", "relay").annotation("cwasi.memory", "4MiB"));
    scene.secondary("sink", "server");
    comes_back(&scene, "p", "relay", LARGE);
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
    scene.start(serving(scene.guest("core", "merger"), "core").annotation("cwasi.fan-in", "caller"));
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
fn each_request_has_an_instance_of_its_own_unless_it_is_kept() {
    let scene = scene("comp-isolation");
    scene.start(secondary(&scene, "fresh", "server"));
    let kept = secondary(&scene, "kept", "server");
    scene.start(kept.annotation("cwasi.isolation", "instance"));
    for (target, wanted) in [("fresh", "ok: 1\nok: 1\nok: 1\n"), ("kept", "ok: 1\nok: 2\nok: 3\n")] {
        let outcome = probe(&scene, "p", &["calls", target, "!served", "!served", "!served"]);
        assert_eq!(outcome.success().text(), wanted, "{target}");
    }
}
