//! The mount of type `cgroup` on a host with cgroup v1: bind mounts of the container's own directory in each
//! hierarchy. Runs in the builder.
//!
//! libcontainer would look up its own pid in the host's `/proc`, where that number belongs to another process or to
//! none, unless the container has a new pid namespace. It would also mount hierarchies in which the container has no
//! directory (`name=systemd`) as a whole, and ignore `ro`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use libcgroups::common::{CgroupSetup, get_cgroup_setup};
use libcgroups::v1::util::list_supported_mount_points;
use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{Mount, MountBuilder, Spec};

/// Where a hierarchy is mounted, and its name below the container's mount.
type Hierarchy = (PathBuf, String);

/// Replaces `cgroup` mounts on a host with cgroup v1; with v2 libcontainer does what runc does.
///
/// # Errors
/// When a mount cannot be described.
pub fn apply(spec: &mut Spec) -> Result<(), OciSpecError> {
    let is_cgroup = |mount: &Mount| mount.typ().as_deref() == Some("cgroup");
    let mounts = spec.mounts().clone().unwrap_or_default();
    let v1 = matches!(get_cgroup_setup(), Ok(CgroupSetup::Legacy | CgroupSetup::Hybrid));
    if !v1 || !mounts.iter().any(is_cgroup) {
        return Ok(());
    }
    let Some(mut linux) = spec.linux().clone() else { return Ok(()) };
    // Without a path of its own the container is where libcontainer puts it.
    let Some(path) = linux.cgroups_path().as_deref().and_then(below) else { return Ok(()) };
    let hierarchies = hierarchies();
    let mut all = Vec::with_capacity(mounts.len() + hierarchies.len());
    for mount in mounts {
        if !is_cgroup(&mount) {
            all.push(mount);
            continue;
        }
        let options = mount.options().clone().unwrap_or_default();
        if options.iter().any(|option| option == "ro") {
            // At the end: the mount points of the hierarchies are made in it before.
            let mut readonly = linux.readonly_paths().clone().unwrap_or_default();
            readonly.push(mount.destination().display().to_string());
            linux.set_readonly_paths(Some(readonly));
        }
        all.extend(replacement(mount.destination(), &options, &hierarchies, &path)?);
    }
    spec.set_mounts(Some(all)).set_linux(Some(linux));
    Ok(())
}

/// A cgroup's path without its leading `/`; `None` when it leads elsewhere.
fn below(path: &Path) -> Option<PathBuf> {
    let relative: PathBuf = path.components().filter(|part| *part != Component::RootDir).collect();
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && relative != Path::new("")).then_some(relative)
}

/// The hierarchies in which libcgroups makes a directory for the container. One with several controllers is there under
/// each one's name too.
fn hierarchies() -> BTreeSet<Hierarchy> {
    let supported = list_supported_mount_points().unwrap_or_default();
    let named = supported.into_iter().flat_map(|(controller, point)| {
        let own = point.file_name().map(|name| name.to_string_lossy().into_owned());
        own.into_iter().chain([controller.to_string()]).map(move |name| (point.clone(), name))
    });
    named.collect()
}

fn replacement(
    destination: &Path,
    options: &[String],
    hierarchies: &BTreeSet<Hierarchy>,
    path: &Path,
) -> Result<Vec<Mount>, OciSpecError> {
    let tmpfs = ["nosuid", "noexec", "nodev", "mode=755"].map(str::to_owned);
    let parent = MountBuilder::default()
        .destination(destination)
        .typ("tmpfs")
        .source("tmpfs")
        .options(tmpfs)
        .build();
    let mut flags = vec!["bind".to_owned()];
    flags.extend(options.iter().cloned());
    let binds = hierarchies.iter().map(|(point, name)| {
        MountBuilder::default()
            .destination(destination.join(name))
            .typ("bind")
            .source(point.join(path))
            .options(flags.clone())
            .build()
    });
    std::iter::once(parent).chain(binds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_path_is_the_containers() {
        assert_eq!(below(Path::new("/k8s/pod/c")), Some("k8s/pod/c".into()));
        assert_eq!(below(Path::new("system.slice:cri:c")), Some("system.slice:cri:c".into()));
        assert_eq!(below(Path::new("/a/../b")), None);
        assert_eq!(below(Path::new("/")), None);
    }

    #[test]
    fn each_hierarchy_shows_the_containers_directory_with_the_mounts_flags() {
        let two = [("/h/cpu,cpuacct", "cpu"), ("/h/memory", "memory")];
        let two = two.map(|(point, name)| (point.into(), name.to_owned())).into();
        let options = ["nosuid".to_owned(), "ro".to_owned()];
        let mounts = replacement(Path::new("/sys/fs/cgroup"), &options, &two, Path::new("a/b"));
        let mounts = mounts.unwrap();
        assert_eq!(mounts[0].typ().as_deref(), Some("tmpfs"));
        assert_eq!(mounts[1].destination(), Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(mounts[1].source().as_deref(), Some(Path::new("/h/cpu,cpuacct/a/b")));
        assert_eq!(mounts[2].options().clone().unwrap(), ["bind", "nosuid", "ro"]);
    }
}
