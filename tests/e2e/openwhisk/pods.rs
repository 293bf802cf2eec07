//! A pod as OpenWhisk's Kubernetes factory makes it from the template of `docs/openwhisk.md`.

use std::net::{IpAddr, Ipv6Addr};

use crate::cri::client::Cri;
use cwasi_testbed::leaks;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::port::free_port;
use cwasi_testbed::scene::{GUESTS, unique, wait_for};
use serde_json::json;

use super::fixture::{END, base64, module, payload, post};
use crate::SHIM;

#[test]
fn a_pod_of_the_template_is_an_action() {
    let (scene, cri) = Cri::scene(ContainerdVersion::V2, SHIM);
    let parent = unique("cwasi-cri");
    let logs = scene.node.path().join("pods");
    // The pod has the machine's network.
    let port = free_port(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let annotations = [
        ("cwasi.role.user-action", "secondary"),
        ("cwasi.http.user-action", &port.to_string()),
        ("cwasi.protocol.user-action", "openwhisk"),
        ("cwasi.allow.user-action", "gateway"),
    ];
    let pod = cri.run_pod(&annotations, &format!("/{parent}"), logs);
    let id = pod.start("user-action", GUESTS, &["action"], Some(128 << 20));
    let pid = scene.pid(&id);
    let init = json!({ "value": payload(&base64(&module()), "main") });
    assert_eq!(post(pid, port, "/init", init.to_string().into()), (200, json!({ "ok": true })));
    let echo = json!({ "value": { "n": 1 }, "activation_id": "i" });
    assert_eq!(post(pid, port, "/run", echo.to_string().into()), (200, json!({ "n": 1 })));
    // containerd copies the streams into the log.
    let log = wait_for("the end of the activation", || {
        let log = pod.log("user-action");
        log.iter().any(|line| line == END).then_some(log)
    });
    assert_eq!(log, ["hello stdout", END]);
    pod.stop(&id);
    assert_eq!(pod.wait_exit(&id).0, 143);
    pod.remove();
    assert_eq!(cri.pods(), 0);
    // The pod's own, which a kubelet removes.
    leaks::remove_cgroups(&parent);
}
