//! What the builder refuses in a specification, before anything of the container is made. Runs in the builder.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use libcontainer::oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::{BuilderError, lsm};

/// The mount namespace of this process, which is the host's here.
const OWN_MOUNTS: &str = "/proc/self/ns/mnt";

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
    let label = linux.and_then(|linux| linux.mount_label().as_deref());
    lsm::check_label("linux.mountLabel", label)?;
    let process = spec.process().as_ref();
    let label = process.and_then(|process| process.selinux_label().as_deref());
    lsm::check_label(lsm::PROCESS_LABEL, label)
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
