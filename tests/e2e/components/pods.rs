//! A pod, as the kubelet starts one, with components and core modules in it, on each containerd.

use cwasi_testbed::cri::{Cri, Pod};
use cwasi_testbed::leaks;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{GUESTS, Scene, unique};

use super::{SHIM, image};

/// Of the component whose memory is limited.
const LIMIT: i64 = 64 << 20;

/// Starts a pod for `run` and removes it.
pub fn in_pod(scene: &Scene, cri: &Cri, annotations: &[(&str, &str)], run: impl FnOnce(&Pod<'_>)) {
    let parent = unique("cwasi-cri");
    let logs = scene.node.path().join("pods");
    let pod = cri.run_pod(annotations, &format!("/{parent}"), logs);
    run(&pod);
    pod.remove();
    assert_eq!(cri.pods(), 0);
    // The pod's own, which a kubelet removes.
    leaks::remove_cgroups(&parent);
}

/// What a core module of the pod gets from `target`.
pub fn called(pod: &Pod<'_>, name: &str, target: &str, payload: &str) -> Vec<String> {
    let id = pod.start(name, GUESTS, &["/probe.wasm", "call", target, payload], None);
    assert_eq!(pod.wait_exit(&id), (0, "Completed".into()), "{:?}", pod.log(name));
    pod.log(name)
}

fn pod_of_components(version: ContainerdVersion) {
    let (scene, cri) = Cri::scene(version, SHIM);
    let [server, command] = ["server", "command"].map(|name| {
        let name = image(&scene, name);
        cri.wait_image(&name);
        name
    });
    let roles = [("cwasi.role.server", "secondary"), ("cwasi.role.core", "secondary")];
    in_pod(&scene, &cri, &roles, |pod| {
        let function = pod.start("server", &server, &["/m.wasm"], Some(LIMIT));
        let _core = pod.start("core", GUESTS, &["/server.wasm"], None);
        // Its name is the file's unless an annotation says it.
        assert_eq!(called(pod, "one", "m", "hello"), ["hello"]);
        assert_eq!(called(pod, "two", "m", "!call server deep"), ["deep"]);
        let primary = pod.start("primary", &command, &["/m.wasm"], None);
        assert_eq!(pod.wait_exit(&primary), (0, "Completed".into()));
        let greedy = pod.start("greedy", GUESTS, &["/probe.wasm", "call", "m", "!trap"], None);
        assert_eq!(pod.wait_exit(&greedy).0, cwasi_abi::Errno::Trapped.code());
        assert!(pod.runs(&function));
        pod.stop(&function);
        assert_eq!(pod.wait_exit(&function).0, 143, "it was asked to end");
    });
}

#[test]
fn a_pod_of_components_on_containerd_2() {
    pod_of_components(ContainerdVersion::V2);
}
