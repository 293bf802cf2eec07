//! What containers of this runtime can ask for, in the form of the runtime specification's `features`: the answer to
//! `-info`. Runs in the launcher.
//!
//! `ctr plugins inspect-runtime` prints it, and clients read it through containerd's introspection service. The CRI of
//! containerd 2.x asks only shims of the type `io.containerd.runc.v2` (docs/conformance.md). Invariant: nothing is listed
//! that a container then cannot have.

use std::collections::HashMap;

use containerd_shim::protos::protobuf::well_known_types::any::Any;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    ApparmorBuilder, CgroupBuilder, Features, FeaturesBuilder, IDMapBuilder, IntelRdtBuilder,
    LinuxFeatureBuilder, LinuxNamespaceType, LinuxSeccompAction, MountExtensionsBuilder,
    SeccompBuilder, SelinuxBuilder,
};

/// The type under which containerd knows the JSON text.
const TYPE_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";
/// Oldest version of the runtime specification.
const OCI_MIN: &str = "1.0.0";
/// Newest version of the runtime specification.
const OCI_MAX: &str = "1.2.1";
/// Annotation of the answer: what `pod_annotations` in containerd's configuration has to contain.
const POD_ANNOTATIONS: (&str, &str) = ("io.containerd.cwasi.v1.pod-annotations", "cwasi.*");

const HOOKS: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

const MOUNT_OPTIONS: [&str; 51] = [
    "async",
    "atime",
    "bind",
    "defaults",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "mand",
    "noatime",
    "nodev",
    "nodiratime",
    "noexec",
    "nomand",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "private",
    "ratime",
    "rbind",
    "rdev",
    "rdiratime",
    "relatime",
    "remount",
    "rexec",
    "rnoatime",
    "rnodev",
    "rnodiratime",
    "rnoexec",
    "rnorelatime",
    "rnostrictatime",
    "rnosuid",
    "rnosymfollow",
    "ro",
    "rprivate",
    "rrelatime",
    "rro",
    "rrw",
    "rshared",
    "rslave",
    "rstrictatime",
    "rsuid",
    "rsymfollow",
    "runbindable",
    "rw",
    "shared",
    "slave",
    "strictatime",
    "suid",
    "sync",
    "unbindable",
];

/// All but user namespaces, which the builder refuses, and time namespaces.
const NAMESPACES: [LinuxNamespaceType; 6] = [
    LinuxNamespaceType::Cgroup,
    LinuxNamespaceType::Ipc,
    LinuxNamespaceType::Mount,
    LinuxNamespaceType::Network,
    LinuxNamespaceType::Pid,
    LinuxNamespaceType::Uts,
];

const SECCOMP_ACTIONS: [LinuxSeccompAction; 8] = [
    LinuxSeccompAction::ScmpActAllow,
    LinuxSeccompAction::ScmpActErrno,
    LinuxSeccompAction::ScmpActKill,
    LinuxSeccompAction::ScmpActKillProcess,
    LinuxSeccompAction::ScmpActKillThread,
    LinuxSeccompAction::ScmpActLog,
    LinuxSeccompAction::ScmpActTrace,
    LinuxSeccompAction::ScmpActTrap,
];

const SECCOMP_OPERATORS: [&str; 7] = [
    "SCMP_CMP_EQ",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_LE",
    "SCMP_CMP_LT",
    "SCMP_CMP_MASKED_EQ",
    "SCMP_CMP_NE",
];

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn features() -> Result<Features, OciSpecError> {
    let cgroup = CgroupBuilder::default().v1(true).v2(true).systemd(true).systemd_user(false);
    let seccomp = SeccompBuilder::default()
        .enabled(true)
        .actions(SECCOMP_ACTIONS)
        .operators(owned(&SECCOMP_OPERATORS));
    let idmap = IDMapBuilder::default().enabled(false).build()?;
    let linux = LinuxFeatureBuilder::default()
        .namespaces(NAMESPACES)
        .cgroup(cgroup.rdma(false).build()?)
        .seccomp(seccomp.build()?)
        .apparmor(ApparmorBuilder::default().enabled(true).build()?)
        .selinux(SelinuxBuilder::default().enabled(true).build()?)
        .intel_rdt(IntelRdtBuilder::default().enabled(true).build()?)
        .mount_extensions(MountExtensionsBuilder::default().idmap(idmap).build()?);
    let (key, value) = POD_ANNOTATIONS;
    FeaturesBuilder::default()
        .oci_version_min(OCI_MIN)
        .oci_version_max(OCI_MAX)
        .hooks(owned(&HOOKS))
        .mount_options(owned(&MOUNT_OPTIONS))
        .linux(linux.build()?)
        .annotations(HashMap::from([(key.to_owned(), value.to_owned())]))
        .build()
}

/// The features, as `RuntimeInfo` carries them.
#[must_use]
pub fn any() -> Any {
    let features = features().expect("every field of the features has a default");
    let value = serde_json::to_vec(&features).expect("features have no keys but strings");
    Any { type_url: TYPE_URL.to_owned(), value, ..Any::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_finds_the_names_that_it_looks_for() {
        let json: serde_json::Value = serde_json::from_slice(&any().value).unwrap();
        assert_eq!(json["ociVersionMin"], "1.0.0");
        let options = json["mountOptions"].as_array().unwrap();
        assert!(options.contains(&"rro".into()), "{json}");
        assert_eq!(json["linux"]["cgroup"]["systemd"], true);
        assert_eq!(json["linux"]["mountExtensions"]["idmap"]["enabled"], false);
        let namespaces = json["linux"]["namespaces"].as_array().unwrap();
        assert!(namespaces.contains(&"network".into()) && !namespaces.contains(&"user".into()));
        assert_eq!(json["annotations"]["io.containerd.cwasi.v1.pod-annotations"], "cwasi.*");
    }
}
