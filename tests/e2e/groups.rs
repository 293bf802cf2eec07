//! End to end on a real containerd: instances of the caller's own pod or workflow serve it, as long as there are any.
//! Pods are containers with the annotations that containerd's CRI plugin gives them.

use cwasi_testbed::numbered::Numbered;
use cwasi_testbed::scene::wait_for;

use crate::scene;

/// The pod of a container, as CRI says it.
const POD: &str = "io.kubernetes.cri.sandbox-id";
/// The container's name in it.
const CONTAINER: &str = "io.kubernetes.cri.container-name";
#[test]
fn a_caller_prefers_its_pod_while_its_callee_lives() {
    let scene = scene("rollout");
    let numbered = Numbered::default();
    let server = |id: &str, pod: &str| {
        let run = scene.guest(id, "server").annotation(POD, pod);
        let run = run.annotation("cwasi.role", "secondary").annotation("cwasi.function", "server");
        scene.start(numbered.noting(id, run));
    };
    server("old", "old-pod");
    server("new", "new-pod");
    let caller = scene.guest("caller", "probe").annotation(POD, "new-pod");
    let caller = numbered.calling(caller, "server").spawn(&scene.containerd);
    numbered.wait_for_more("new", 100);
    assert!(numbered.executed("old").is_empty(), "a call left its pod");
    scene.kill("new", "KILL");
    numbered.wait_for_more("old", 20);
    server("new-again", "new-pod");
    numbered.wait_for_more("new-again", 20);
    let elsewhere = numbered.executed("old").len();
    numbered.wait_for_more("new-again", 100);
    assert_eq!(numbered.executed("old").len(), elsewhere, "calls still leave their pod");
    let ends = numbered.finish(caller.expect("ctr starts"));
    // At most the call that the killed instance had.
    numbered.check(&["old", "new", "new-again"], &ends, 1);
}

#[test]
fn without_the_pods_annotations_the_error_names_the_setting() {
    let scene = scene("pod-annotations");
    let reactor = |id: &str| scene.guest(id, "actor").args(["name", id]).annotation(POD, "pod");
    let outcome = scene.run(reactor("alone"));
    assert_ne!(outcome.code, 0);
    assert!(outcome.stderr.contains("pod_annotations = [\"cwasi.*\"]"), "{}", outcome.stderr);
    // The pod's annotations came, with nothing for this container.
    let named = reactor("named").annotation(CONTAINER, "named");
    let outcome = scene.run(named.annotation("cwasi.role.other", "secondary"));
    assert_ne!(outcome.code, 0);
    assert!(!outcome.stderr.contains("pod_annotations"), "{}", outcome.stderr);
}

#[test]
fn misspelt_suffixes_and_pod_roles_are_warnings() {
    let scene = scene("pod-doubts");
    let log = || std::fs::read_to_string(scene.containerd.ready().log()).unwrap();
    let misspelt = scene.guest("a", "probe").args(["exit", "0"]).annotation(POD, "pod");
    let misspelt = misspelt.annotation(CONTAINER, "greeter");
    let outcome = scene.run(misspelt.annotation("cwasi.timeout.gretter", "5s")).success();
    assert!(outcome.stderr.contains("warning: cwasi.timeout.gretter"), "{}", outcome.stderr);
    let secondary = |id: &str| {
        let run = scene.guest(id, "actor").args(["name", id]).annotation(POD, "pod-of-two");
        let run = run.annotation(CONTAINER, id).annotation("cwasi.role", "secondary");
        scene.start(run.annotation(&format!("cwasi.function.{id}"), id));
    };
    secondary("first");
    assert!(!log().contains("cwasi.role.first"));
    secondary("second");
    wait_for("the warning in containerd's log", || {
        log().contains("cwasi.role.second").then_some(())
    });
}
