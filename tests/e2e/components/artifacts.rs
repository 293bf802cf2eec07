//! Components as others' tools push them, without an image around them: `wkg` and `wash`
//! (`application/vnd.wasm.config.v0+json`), and `spin`.

use crate::cri::client::{Cri, Pod};
use cwasi_testbed::image::{write_spin_application, write_wasm_artifact};
use cwasi_testbed::leaks;
use cwasi_testbed::paths::{ContainerdVersion, component_guest};
use cwasi_testbed::registry::{Registry, Setup};
use cwasi_testbed::run::Outcome;
use cwasi_testbed::scene::{GUESTS, Scene, unique};

use super::{SHIM, call, serving};

/// What containerd's client says about a configuration that is none of a container image.
const UNKNOWN: &str = "unknown image config media type application/vnd.wasm.config.v0+json";

/// Imports an archive of an artifact under this name, without unpacking it.
fn import(scene: &Scene, reference: &str, write: impl FnOnce(&str, &std::path::Path)) {
    let archive = tempfile::NamedTempFile::new().unwrap();
    write(reference, archive.path());
    let import = ["images", "import", "--all-platforms", "--no-unpack"];
    let archive = archive.path().to_str().unwrap();
    let _imported = scene.ctr(import.into_iter().chain([archive])).success();
}

fn wkg(scene: &Scene, reference: &str) {
    let server = component_guest("server");
    import(scene, reference, |name, out| write_wasm_artifact(&server, name, out).unwrap());
}

fn spin(scene: &Scene, reference: &str, components: &[&str]) {
    let files: Vec<_> = components.iter().map(|name| component_guest(name)).collect();
    let files: Vec<_> = files.iter().map(std::path::PathBuf::as_path).collect();
    import(scene, reference, |name, out| write_spin_application(&files, name, out).unwrap());
}

/// `ctr run` of the artifact as a secondary.
fn start(scene: &Scene, reference: &str, id: &str) -> Outcome {
    let run = serving(scene.image(reference, id).args(["/m.wasm"]), id);
    run.detach(&scene.containerd).unwrap()
}

fn by_ctr(version: ContainerdVersion) {
    let scene = Scene::open(version, SHIM, &unique("comp-oci"));
    // containerd's client refuses the configuration before the runtime is asked.
    wkg(&scene, "localhost/server:wkg");
    let refused = start(&scene, "localhost/server:wkg", "wkg");
    assert!(refused.code != 0 && refused.stderr.contains(UNKNOWN), "{}", refused.stderr);
    // A Spin application has the configuration of a container image.
    spin(&scene, "localhost/web:spin", &["http"]);
    let _started = start(&scene, "localhost/web:spin", "web").success();
    assert_eq!(call(&scene, "p", "web", "x"), "POST / x");
    spin(&scene, "localhost/two:spin", &["http", "server"]);
    let refused = start(&scene, "localhost/two:spin", "two");
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("has 2 Wasm layers"), "{}", refused.stderr);
}

#[test]
fn containerd_1_7_runs_an_application_of_spin_by_ctr() {
    by_ctr(ContainerdVersion::V1_7);
}

#[test]
fn containerd_2_runs_an_application_of_spin_by_ctr() {
    by_ctr(ContainerdVersion::V2);
}

#[test]
fn containerd_1_6_unpacks_no_artifact() {
    let scene = Scene::new(SHIM, "comp-oci");
    wkg(&scene, "localhost/server:wkg");
    spin(&scene, "localhost/web:spin", &["http"]);
    for reference in ["localhost/server:wkg", "localhost/web:spin"] {
        let refused = start(&scene, reference, "refused");
        let says = "mismatched image rootfs and manifest layers";
        assert!(refused.code != 0 && refused.stderr.contains(says), "{}", refused.stderr);
    }
}

/// Starts a pod for `run` and removes it.
fn in_pod(scene: &Scene, cri: &Cri, annotations: &[(&str, &str)], run: impl FnOnce(&Pod<'_>)) {
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
fn called(pod: &Pod<'_>, name: &str, target: &str, payload: &str) -> Vec<String> {
    let id = pod.start(name, GUESTS, &["/probe.wasm", "call", target, payload], None);
    assert_eq!(pod.wait_exit(&id), (0, "Completed".into()), "{:?}", pod.log(name));
    pod.log(name)
}

/// A pod whose containers are artifacts that the kubelet would pull.
fn in_a_pod(version: ContainerdVersion) {
    let (scene, cri) = Cri::scene(version, SHIM);
    let registry = Registry::start(&Setup::default());
    let [server, web] = ["server:wkg", "web:spin"].map(|it| format!("{}/{it}", registry.address()));
    wkg(&scene, &server);
    spin(&scene, &web, &["http"]);
    for name in [&server, &web] {
        let _pushed = scene.ctr(["images", "push", "--plain-http", name]).success();
        let _removed = scene.ctr(["images", "rm", "--sync", name]).success();
        cri.pull(name).unwrap_or_else(|status| panic!("{name}: {status}"));
    }
    let roles = [("cwasi.role.server", "secondary"), ("cwasi.role.web", "secondary")];
    in_pod(&scene, &cri, &roles, |pod| {
        let _server = pod.start("server", &server, &["/server.wasm"], None);
        // As in the pods of SpinKube: the function has the image's name.
        let _web = pod.start("web", &web, &["/"], None);
        assert_eq!(called(pod, "one", "server", "hello"), ["hello"]);
        assert_eq!(called(pod, "two", "server", "!call web deep"), ["POST / deep"]);
    });
}

#[test]
fn a_pod_of_artifacts_on_containerd_1_7() {
    in_a_pod(ContainerdVersion::V1_7);
}

#[test]
fn a_pod_of_artifacts_on_containerd_2() {
    in_a_pod(ContainerdVersion::V2);
}

#[test]
fn containerd_1_6_pulls_no_artifact_for_a_pod() {
    let (scene, cri) = Cri::scene(ContainerdVersion::V1_6, SHIM);
    let registry = Registry::start(&Setup::default());
    let server = format!("{}/server:wkg", registry.address());
    wkg(&scene, &server);
    let _pushed = scene.ctr(["images", "push", "--plain-http", &server]).success();
    let _removed = scene.ctr(["images", "rm", "--sync", &server]).success();
    let refused = cri.pull(&server).unwrap_err();
    assert!(refused.message().contains("mismatched image rootfs"), "{refused}");
}
