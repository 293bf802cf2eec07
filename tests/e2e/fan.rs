//! End to end on a real containerd: many calls in flight, of functions in containers of their own and in the caller's
//! VM. Every test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

use std::path::Path;

use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::state::StateDir;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, guests_dir, wait_for};

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1");

fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
}

/// A secondary `id` of `guest` that serves as `function`.
fn secondary(scene: &Scene, id: &str, function: &str, guest: &str, args: &[&str]) -> Run {
    let run = scene.guest(id, guest).args(args.iter().copied());
    run.annotation("cwasi.role", "secondary").annotation("cwasi.function", function)
}

/// What `fan` says about a fan-out.
fn fan(scene: &Scene, id: &str, args: &[&str]) -> String {
    scene.run(scene.guest(id, "fan").args(args.iter().copied())).success().text()
}

#[test]
fn one_region_reaches_containers_and_embedded_functions() {
    let scene = scene("fan-modes");
    let reader = guests_dir(Path::new(SHIM).parent().unwrap()).join("reader.wasm");
    let image = scene.import_module("reader", &std::fs::read(reader).unwrap());
    for id in ["first", "second", "third"] {
        scene.start(secondary(&scene, id, id, "reader", &[]));
    }
    for (id, size) in [("small", "1000"), ("edge", "65537"), ("large", "20000000")] {
        let args = ["to-all", size, "first", "inside", "second", "third", "inside"];
        let run = scene.guest(id, "fan").args(args).annotation("cwasi.workflow", "w");
        let run = run.annotation("cwasi.embed", &format!("inside={image}"));
        let said = scene.run(run).success().text();
        assert_eq!(said, format!("{size} bytes to 5: as expected\n"));
    }
}

#[test]
fn calls_spread_over_the_instances_of_a_function() {
    let scene = scene("fan-spread");
    for (id, name) in [("w1", "one"), ("w2", "two")] {
        let run = secondary(&scene, id, "worker", "actor", &["name", name]);
        scene.start(run.annotation("cwasi.concurrency", "1"));
    }
    assert_eq!(fan(&scene, "both", &["answers", "worker", "2"]), "one two\n");
    assert_eq!(fan(&scene, "many", &["answers", "worker", "40"]), "one two\n");
    // One that starts later is found too, and one that is gone is not missed.
    scene.kill("w1", "KILL");
    scene.wait_stopped("w1");
    assert_eq!(fan(&scene, "left", &["answers", "worker", "10"]), "two\n");
}

#[test]
fn hundreds_of_calls_end_each_with_its_own_answer_or_error() {
    let scene = scene("fan-many");
    let echo = secondary(&scene, "echo", "echo", "actor", &[]);
    scene.start(echo.annotation("cwasi.concurrency", "2").annotation("cwasi.queue", "600"));
    for (id, size, limit) in [("all", "300", "500"), ("some", "100000", "16")] {
        let said = fan(&scene, id, &["many", "echo", "500", size, limit]);
        assert_eq!(said, format!("500 calls of up to {size} bytes: as expected\n"));
    }
    let said = fan(&scene, "partial", &["ends", "echo", "200", "x"]);
    assert_eq!(said, "no such function 20, ok 180\n");
}

#[test]
fn a_callee_without_room_says_so_to_each_call() {
    let scene = scene("fan-overload");
    let slow = secondary(&scene, "slow", "slow", "actor", &["nap", "500"]);
    scene.start(slow.annotation("cwasi.concurrency", "1").annotation("cwasi.queue", "2"));
    let said = fan(&scene, "f", &["ends", "slow", "1000", "x"]);
    let counts: Vec<(&str, usize)> = said
        .trim()
        .split(", ")
        .map(|part| part.rsplit_once(' ').unwrap())
        .map(|(kind, count)| (kind, count.parse().unwrap()))
        .collect();
    let [("no such function", 100), ("ok", served), ("overloaded", refused)] = counts[..] else {
        panic!("{said}");
    };
    assert!(served >= 3 && served + refused == 900, "{said}");
}

#[test]
fn abandoned_calls_leave_their_callee_usable() {
    let scene = scene("fan-left");
    scene.start(secondary(&scene, "echo", "echo", "actor", &["nap", "20"]));
    assert_eq!(fan(&scene, "p", &["leave", "echo", "50"]), "5 bytes came, 50 calls are left\n");
    // A secondary that leaves calls behind in each of its requests, in one worker.
    let leaver = secondary(&scene, "leaver", "leaver", "actor", &["fan", "echo"]);
    scene.start(leaver.annotation("cwasi.concurrency", "1"));
    let caller = scene.guest("c", "caller").args(["leaver", "30", "100", "echo"]);
    assert_eq!(scene.run(caller).success().text(), "30 calls with 100 bytes: as expected\n");
    let said = fan(&scene, "again", &["ends", "echo", "9", "x"]);
    assert_eq!(said, "ok 9\n");
}

#[test]
fn a_killed_callee_ends_the_calls_that_are_out_to_it() {
    let scene = scene("fan-killed");
    let server = secondary(&scene, "svc", "svc", "server", &[]);
    scene.start(server.annotation("cwasi.concurrency", "9").annotation("cwasi.queue", "0"));
    let run = scene.guest("f", "fan").args(["ends", "svc", "10", "!block"]);
    let running = run.spawn(&scene.containerd).unwrap();
    // Read from what the shim has counted: a call that looks takes a worker's place.
    let state = StateDir::new(&scene.node.state());
    wait_for("every call to be out", || {
        let functions = NodeMetrics::read(&state).functions;
        functions.iter().any(|(key, it)| key.function == "svc" && it.busy == 9).then_some(())
    });
    scene.kill("svc", "KILL");
    assert_eq!(running.finish().unwrap().success().text(), "broken 9, no such function 1\n");
    scene.wait_stopped("svc");
}

#[test]
fn a_caller_that_computes_before_it_reads_holds_up_no_other() {
    const SHAPES: [(usize, usize); 2] = [(8, 60_000), (60, 16_000)];
    let scene = scene("fan-late");
    let gate = tempfile::tempdir().unwrap();
    // Half of the 8 answers fit into the late caller's connection. The others would keep all workers.
    let server = secondary(&scene, "server", "server", "server", &[]);
    scene.start(server.annotation("cwasi.concurrency", "2").annotation("cwasi.queue", "100"));
    let shapes = SHAPES.iter().flat_map(|(count, size)| [count.to_string(), size.to_string()]);
    let late = scene.guest("late", "fan").args(["late", "server", "/gate"]).args(shapes);
    let late = late.mount(gate.path(), "/gate", "rw").annotation("cwasi.timeout", "100s");
    let mut late = late.spawn(&scene.containerd).unwrap();
    for (place, _) in SHAPES.iter().enumerate() {
        wait_for("the late caller's calls to be out", || {
            assert!(!late.has_ended(), "it waits for a file");
            gate.path().join(format!("started-{place}")).exists().then_some(())
        });
        // It reads nothing before the file is there, and that is when all calls of the other one have ended.
        let other = scene.guest(&format!("other-{place}"), "caller");
        let other = scene.run(other.args(["server", "200", "100", "echo"])).success();
        assert_eq!(other.text(), "200 calls with 100 bytes: as expected\n");
        std::fs::write(gate.path().join(format!("collect-{place}")), "").unwrap();
    }
    let said =
        SHAPES.map(|(count, size)| format!("{count} answers of {size} bytes: as expected\n"));
    assert_eq!(late.finish().unwrap().success().text(), said.concat());
}
