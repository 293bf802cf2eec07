//! End to end through containerd's CRI service, as the kubelet uses it: a pod with functions and a native container, on
//! each containerd. `make test-kubernetes` runs the kubelet itself.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

pub mod client;

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_testbed::leaks;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{BUSYBOX, GUESTS, unique, wait_for};

use self::client::{Cri, Pod};
use crate::SHIM;

/// Of the functions whose memory is limited.
const LIMIT: i64 = 64 << 20;
/// After an update.
const RAISED: i64 = 96 << 20;

#[test]
fn a_pod_of_functions_on_containerd_1_6() {
    pod_of_functions(ContainerdVersion::V1_6);
}

#[test]
fn a_pod_of_functions_on_containerd_1_7() {
    pod_of_functions(ContainerdVersion::V1_7);
}

#[test]
fn a_pod_of_functions_on_containerd_2() {
    pod_of_functions(ContainerdVersion::V2);
}

fn pod_of_functions(version: ContainerdVersion) {
    let (scene, cri) = Cri::scene(version, SHIM);
    let parent = unique("cwasi-cri");
    let logs = scene.node.path().join("pods");
    let pod = cri.run_pod(&[("cwasi.role.server", "secondary")], &format!("/{parent}"), logs);
    let server = pod.start("server", GUESTS, &["/server.wasm"], Some(LIMIT));
    let script = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
    let shell = pod.start("shell", BUSYBOX, &["/bin/sh", "-c", script], None);
    calls(&pod, "caller");
    ends(&pod);
    executes(&pod, &server, &shell);
    has_statistics(&pod, &server);
    changes_limits(&pod, &server, &parent);

    // Pods go on when their containerd is killed.
    scene.containerd.restart().unwrap();
    cri.wait_ready();
    assert!(pod.runs(&server) && pod.runs(&shell));
    calls(&pod, "later-caller");
    executes(&pod, &server, &shell);

    pod.stop(&server);
    assert_eq!(pod.wait_exit(&server).0, 143, "it was asked to end");
    assert_eq!(pod.containers(), 6);
    pod.remove();
    assert_eq!(cri.pods(), 0);
    let left: Vec<_> = leaks::cgroups_of(&parent).iter().flat_map(|path| folders(path)).collect();
    assert!(left.is_empty(), "cgroups of removed containers: {left:?}");
    // The pod's own, which a kubelet removes.
    leaks::remove_cgroups(&parent);
}

/// A function of the pod calls another one.
fn calls(pod: &Pod<'_>, name: &str) {
    let id = pod.start(name, GUESTS, &["/probe.wasm", "call", "server", "hello"], None);
    assert_eq!(pod.wait_exit(&id), (0, "Completed".into()), "{:?}", pod.log(name));
    assert_eq!(pod.log(name), ["hello"]);
}

/// How functions end that fail, or that take too much memory.
fn ends(pod: &Pod<'_>) {
    let seven = pod.start("seven", GUESTS, &["/probe.wasm", "exit", "7"], None);
    assert_eq!(pod.wait_exit(&seven), (7, "Error".into()));
    let greedy = pod.start("greedy", GUESTS, &["/probe.wasm", "alloc", "200"], Some(LIMIT));
    assert_eq!(pod.wait_exit(&greedy).0, 137);
    // The kill is an event of its own, which may come after the exit.
    wait_for("the reason of its end", || (pod.status(&greedy).reason == "OOMKilled").then_some(()));
}

/// Processes run beside a native container's, and not in a function's container.
fn executes(pod: &Pod<'_>, function: &str, native: &str) {
    let refused = pod.exec(function, &["/bin/true"]).unwrap_err();
    assert!(refused.message().contains("there is no exec"), "{refused}");
    let done = pod.exec(native, &["sh", "-c", "echo out; echo err >&2; exit 3"]).unwrap();
    let said = (done.stdout.as_slice(), done.stderr.as_slice());
    assert_eq!((said, done.exit_code), ((&b"out\n"[..], &b"err\n"[..]), 3));
}

/// The kubelet's source, unless cAdvisor is: what containerd reads of the task's metrics.
fn has_statistics(pod: &Pod<'_>, id: &str) {
    let stats = pod.stats(id);
    let time = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds).unwrap().value;
    let memory = stats.memory.and_then(|memory| memory.working_set_bytes).unwrap().value;
    assert!(time > 0, "no processor time");
    assert!(memory > 0 && memory < LIMIT.unsigned_abs(), "{memory} bytes");
}

/// The limit is that of the container's cgroup, and can change.
fn changes_limits(pod: &Pod<'_>, id: &str, parent: &str) {
    let directories = leaks::cgroups_of(parent);
    let read = |name: &str| {
        directories.iter().find_map(|path| fs::read_to_string(path.join(id).join(name)).ok())
    };
    let limit = || read("memory.max").or_else(|| read("memory.limit_in_bytes")).unwrap();
    assert_eq!(limit().trim(), LIMIT.to_string());
    pod.update_memory(id, RAISED);
    assert_eq!(limit().trim(), RAISED.to_string());
}

fn folders(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).collect()
}
