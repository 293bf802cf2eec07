//! End to end on a real containerd: many calls in flight, of functions in containers of their own and in the caller's
//! VM. Every test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

use std::path::Path;

use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, guests_dir};

use crate::{SHIM, scene};

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
