//! How calls of components end that fail, trap, take too long, or lose their worker.

use cwasi_abi::Errno;

use super::{call, image, probe, secondary};
use crate::scene;

#[test]
fn each_end_of_a_component_reaches_a_core_module_with_its_reason() {
    let scene = scene("comp-ends");
    for name in ["server", "command", "http"] {
        scene.start(secondary(&scene, name, name).annotation("cwasi.timeout", "6s"));
    }
    for (target, order, errno, says) in [
        ("server", "!fail no wheels", Errno::Failed, "no wheels"),
        ("server", "!trap", Errno::Trapped, "unreachable"),
        ("server", "!exit", Errno::Failed, "exit(1)"),
        ("server", "!loop", Errno::Timeout, "deadline"),
        ("server", "!sleep 60000", Errno::Timeout, "deadline"),
        ("server", "!call nobody x", Errno::Failed, "NoSuchFunction"),
        ("command", "!exit 3", Errno::Failed, "exit code 1; end of its stderr: leaving"),
        ("command", "!panic", Errno::Trapped, "unreachable"),
        ("command", "!sleep 60000", Errno::Timeout, "deadline"),
    ] {
        let outcome = probe(&scene, "p", &["call", target, order]);
        assert_eq!(outcome.code, errno.code(), "{target} {order}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{target} {order}: {}", outcome.stderr);
        assert_eq!(call(&scene, "next", target, "next"), "next", "after {order}");
    }
}

#[test]
fn what_no_component_can_be_is_refused_in_words() {
    let scene = scene("comp-refused");
    let server = |id: &str| secondary(&scene, id, "server");
    for (id, run, says) in [
        (
            "embedded",
            server("embedded").annotation("cwasi.engine", "wasmedge"),
            "set the annotation cwasi.engine=wasmtime",
        ),
        (
            "kept",
            secondary(&scene, "kept", "command").annotation("cwasi.isolation", "instance"),
            "cwasi.isolation",
        ),
        (
            "group",
            secondary(&scene, "group", "command").annotation("cwasi.fan-in", "2"),
            "cwasi.fan-in needs a reactor",
        ),
    ] {
        let outcome = scene.run(run);
        assert_ne!(outcome.code, 0, "{id}");
        assert!(outcome.stderr.contains(says), "{id}: {}", outcome.stderr);
    }
    let serves = image(&scene, "http");
    let forced = scene.guest("forced", "probe").annotation("cwasi.workflow", "w");
    let forced = forced.annotation("cwasi.mode", "embedded");
    let forced = forced.annotation("cwasi.embed", &format!("svc={serves}"));
    let outcome = scene.run(forced.args(["call", "svc", "x"]));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("what serves HTTP runs in a process"), "{}", outcome.stderr);
}
