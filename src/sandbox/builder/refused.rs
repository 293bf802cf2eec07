//! What the builder refuses in a specification, before anything of the container is made. Runs in the builder.

use std::collections::HashMap;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use libcgroups::common::{CgroupSetup, get_cgroup_setup};
use libcontainer::oci_spec::runtime::{LinuxNamespaceType, LinuxResources, Process, Spec};

use super::{BuilderError, lsm};

/// The mount namespace of this process, which is the host's here.
const OWN_MOUNTS: &str = "/proc/self/ns/mnt";

/// The network devices of the host.
const NETWORK_DEVICES: &str = "/sys/class/net";

/// Refuses what libcontainer cannot build here, or would ignore.
///
/// # Errors
/// The first such field.
pub fn check(spec: &Spec) -> Result<(), BuilderError> {
    let linux = spec.linux().as_ref();
    let namespaces = linux.and_then(|linux| linux.namespaces().as_deref()).unwrap_or_default();
    if namespaces.iter().any(|one| one.typ() == LinuxNamespaceType::User) {
        return Err(BuilderError::UserNamespace);
    }
    // libcontainer would change the propagation of the host's mounts, and make the container's among them.
    let mounts = namespaces.iter().find(|one| one.typ() == LinuxNamespaceType::Mount);
    match mounts.map(|mounts| mounts.path().as_deref()) {
        None => return Err(BuilderError::HostMounts),
        Some(Some(path)) if is_same(path, Path::new(OWN_MOUNTS)) => {
            return Err(BuilderError::HostMounts);
        }
        Some(_) => {}
    }
    let devices = linux.and_then(|linux| linux.net_devices().as_ref());
    let is_missing = |name: &&String| !Path::new(NETWORK_DEVICES).join(name).exists();
    if let Some(name) = devices.and_then(|devices| devices.keys().find(is_missing)) {
        return Err(BuilderError::NoNetworkDevice { name: name.clone() });
    }
    if let Some(resources) = linux.and_then(|linux| linux.resources().as_ref()) {
        check_resources(resources)?;
    }
    let label = linux.and_then(|linux| linux.mount_label().as_deref());
    lsm::check_label("linux.mountLabel", label)?;
    let process = spec.process().as_ref();
    process.map_or(Ok(()), check_args)?;
    let label = process.and_then(|process| process.selinux_label().as_deref());
    lsm::check_label(lsm::PROCESS_LABEL, label)
}

/// Refuses a process without a program, on which libcontainer panics.
///
/// # Errors
/// When there is none.
pub fn check_args(process: &Process) -> Result<(), BuilderError> {
    match process.args().as_deref() {
        None | Some([]) => Err(BuilderError::NoProgram),
        Some(_) => Ok(()),
    }
}

/// Refuses limits that libcgroups would ignore.
///
/// # Errors
/// The first such limit.
pub fn check_resources(resources: &LinuxResources) -> Result<(), BuilderError> {
    let is_legacy = matches!(get_cgroup_setup(), Ok(CgroupSetup::Legacy | CgroupSetup::Hybrid));
    let has =
        |one: &Option<HashMap<String, String>>| one.as_ref().is_some_and(|all| !all.is_empty());
    let block = resources.block_io().as_ref();
    let has_weights = block.is_some_and(|block| {
        let devices = block.weight_device().as_deref().unwrap_or_default();
        block.leaf_weight().is_some() || !devices.is_empty()
    });
    let memory = resources.memory().as_ref();
    let checks = memory.is_some_and(|memory| memory.check_before_update() == Some(true));
    let refused = [
        (
            is_legacy && has(resources.unified()),
            (
                "linux.resources.unified",
                "this node has cgroup v1; its limits have fields of their own",
            ),
        ),
        (
            is_legacy && has_weights,
            (
                "linux.resources.blockIO.leafWeight or weightDevice",
                "kernels with cgroup v1 have none since Linux 5.0; use weight, or the throttling of devices",
            ),
        ),
        (
            resources.rdma().as_ref().is_some_and(|rdma| !rdma.is_empty()),
            ("linux.resources.rdma", "limits of RDMA are not supported"),
        ),
        (
            checks,
            (
                "linux.resources.memory.checkBeforeUpdate",
                "the kernel reclaims, and ends processes that exceed a new limit; compare with the usage before the update",
            ),
        ),
    ];
    match refused.into_iter().find(|(is_asked, _)| *is_asked) {
        Some((_, (field, why))) => Err(BuilderError::Unsupported { field, why }),
        None => Ok(()),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    id(one).is_some() && id(one) == id(other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cause_chain::cause_chain;

    fn refused(namespaces: &Value) -> Option<String> {
        let spec = json!({ "ociVersion": "1.0.2", "linux": { "namespaces": namespaces } });
        let error = check(&serde_json::from_value(spec).unwrap()).err()?;
        Some(cause_chain(&error))
    }

    #[test]
    fn a_container_has_mounts_of_its_own() {
        assert_eq!(refused(&json!([{ "type": "mount" }])), None);
        assert_eq!(refused(&json!([{ "type": "mount", "path": "/no/such" }])), None);
        for hosts in [json!([{ "type": "pid" }]), json!([{ "type": "mount", "path": OWN_MOUNTS }])]
        {
            let text = refused(&hosts).unwrap();
            assert!(text.contains("linux.namespaces"), "{hosts}: {text}");
        }
    }
}
