//! containerd's configuration in a fixture: everything is private, and nothing touches the machine.
//!
//! Invariant: if the CRI plug-in lists any runtime, it lists runc as well; containerd does not load it otherwise.

use std::path::Path;

use crate::paths::ContainerdVersion;

/// Name of the runtime.
pub const RUNTIME: &str = "io.containerd.cwasi.v1";
/// Handler of the runtime for pods, as `deploy/kubernetes` names it.
pub const CRI_HANDLER: &str = "cwasi";
/// Image of the container that holds a pod's namespaces; the test imports it.
pub const CRI_PAUSE: &str = "localhost/pause:test";
/// They would look into the machine's `/etc` and `/opt`.
const DISABLED: [&str; 2] = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"];
/// The CRI plug-ins of all versions.
const CRI_PLUGINS: [&str; 3] =
    ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"];

/// The configuration of a fixture in `dir`, with the CRI plug-in or without.
#[must_use]
pub fn text(version: ContainerdVersion, dir: &Path, cri: bool) -> String {
    let format = if version == ContainerdVersion::V2 { 3 } else { 2 };
    let mut disabled = DISABLED.to_vec();
    if !cri {
        disabled.extend(CRI_PLUGINS);
    }
    let plugin = if cri { cri_plugin(version, dir) } else { String::new() };
    let dir = dir.display();
    format!(
        r#"version = {format}
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = {disabled:?}
[grpc]
  address = "{dir}/c.sock"
{plugin}"#
    )
}

/// The CRI plug-in. Its keys changed with containerd 2. The machine may lack `CAP_SYS_RESOURCE`, which the adjustment
/// of scores needs.
fn cri_plugin(version: ContainerdVersion, dir: &Path) -> String {
    let dir = dir.display();
    let (name, head) = if version == ContainerdVersion::V2 {
        let name = "io.containerd.cri.v1.runtime";
        let head = format!(
            r#"[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{CRI_PAUSE}"
[plugins."{name}"]
  restrict_oom_score_adj = true
[plugins."{name}".cni]
  bin_dirs = ["{dir}/cni/bin"]"#
        );
        (name, head)
    } else {
        let name = "io.containerd.grpc.v1.cri";
        let head = format!(
            r#"[plugins."{name}"]
  sandbox_image = "{CRI_PAUSE}"
  restrict_oom_score_adj = true
[plugins."{name}".cni]
  bin_dir = "{dir}/cni/bin""#
        );
        (name, head)
    };
    format!(
        r#"{head}
  conf_dir = "{dir}/cni/conf"
[plugins."{name}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."{name}".containerd.runtimes.{CRI_HANDLER}]
  runtime_type = "{RUNTIME}"
  pod_annotations = ["cwasi.*"]
"#
    )
}
