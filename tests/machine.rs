//! The machines of the test cluster (`tests/kubernetes`), as far as they need no program of Kubernetes.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The output of a script with the functions of `tests/kubernetes`, in a mount namespace of its own.
fn bash(script: &str, checkout: &Path) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "bash", "-euc", script]);
    command.env("KUBERNETES_DIR", folder).env("CHECKOUT", checkout);
    command.env("STATE_DIR", checkout.join(".cwasi"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text.into_owned()
}

#[test]
fn a_machine_sees_a_checkout_below_tmp_or_run() {
    for parent in ["/tmp", "/run"] {
        let folder = tempfile::Builder::new().prefix("a clone ").tempdir_in(parent).unwrap();
        let checkout = folder.path();
        fs::create_dir_all(checkout.join(".cwasi/machine")).unwrap();
        fs::write(checkout.join("file"), "of the checkout").unwrap();
        let seen = bash(
            r#"source "$KUBERNETES_DIR/mounts.sh"
            DIR=$STATE_DIR/machine ROOT=$DIR/root
            mount_root
            cat "$ROOT$CHECKOUT/file""#,
            checkout,
        );
        assert_eq!(seen, "of the checkout");
    }
}

#[test]
fn the_logs_say_which_service_did_not_start_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join(".cwasi/kubernetes/cluster/control");
    fs::create_dir_all(control.join("disk/var/log")).unwrap();
    fs::write(control.join("etcd.start"), "nsenter: failed to execute service.sh").unwrap();
    fs::write(control.join("disk/var/log/apiserver.log"), "no etcd").unwrap();
    let script = r#"source "$KUBERNETES_DIR/machines.sh"; show_logs control etcd apiserver"#;
    let said = bash(script, folder.path());
    assert!(said.contains("etcd of control has no log") && said.contains("failed to execute"));
    assert!(said.contains("apiserver of control, in ") && said.contains("no etcd"), "{said}");
}
