//! Checks where a container's mounts and its working directory lead, links of the image and of mounted folders
//! included. Runs in the shim daemon.
//!
//! Mounts are made in the order of the list, each in what the ones before it show. Links are followed inside the
//! container's root, as libcontainer follows them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::{Mount, Spec};

use super::error::PlanError;
use cwasi_config::mount_target::{MountProblem, plain};
use cwasi_wire::control::FILES_DIR;

/// Most links on the way to one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Where the container's devices are made.
const DEVICES: &str = "/dev";

/// A container's files: its root, and what is mounted in it.
struct Tree<'a> {
    root: &'a Path,
    mounted: Vec<Mounted<'a>>,
}

struct Mounted<'a> {
    /// Its path in the container, without links.
    at: PathBuf,
    /// Its files on the host; `None` = files of the kernel.
    source: Option<&'a Path>,
    is_read_only: bool,
}

/// A path of the container without links.
struct Located {
    path: PathBuf,
    /// The same on the host; `None` in files of the kernel.
    on_host: Option<PathBuf>,
}

/// Refuses mounts that the container's device files would be made in, that have no place, or that others hide; and a
/// working directory that a mounted folder does not have.
///
/// # Errors
/// The first such mount.
pub(crate) fn check(spec: &Spec, rootfs: &Path) -> Result<(), PlanError> {
    let mut tree = Tree { root: rootfs, mounted: Vec::new() };
    for mount in spec.mounts().as_deref().unwrap_or_default() {
        let Some(source) = source(mount) else {
            tree.mounted.push(Mounted {
                at: plain(mount.destination()),
                source: None,
                is_read_only: false,
            });
            continue;
        };
        let target = plain(mount.destination());
        let located = tree.locate(&target);
        if let Some(problem) = tree.problem(&target, &located) {
            return Err(PlanError::Mount { target, problem });
        }
        let Ok(source_kind) = fs::metadata(source) else {
            return Err(PlanError::MountSource { target, missing: source.to_owned() });
        };
        let there = located.on_host.as_ref().and_then(|path| fs::metadata(path).ok());
        if there.is_some_and(|there| there.is_dir() != source_kind.is_dir()) {
            return Err(PlanError::Mount { target, problem: MountProblem::Kind });
        }
        if let Some(hidden) = tree.hidden_by(&located.path) {
            return Err(PlanError::HiddenMount { target: hidden, by: target });
        }
        let is_read_only = has_option(mount, |option| option == "ro");
        tree.mounted.push(Mounted { at: located.path, source: Some(source), is_read_only });
    }
    let cwd = spec.process().as_ref().map_or(Path::new("/"), |process| process.cwd());
    tree.check_working_directory(cwd)
}

fn has_option(mount: &Mount, wanted: impl Fn(&str) -> bool) -> bool {
    mount.options().iter().flatten().any(|option| wanted(option))
}

/// The source of a bind mount.
fn source(mount: &Mount) -> Option<&Path> {
    let is_bind = mount.typ().as_deref() == Some("bind")
        || has_option(mount, |option| option.ends_with("bind"));
    mount.source().as_deref().filter(|_| is_bind)
}

impl Tree<'_> {
    /// The mount that shows `path`; `None` = the container's root.
    fn mount_of(&self, path: &Path) -> Option<&Mounted<'_>> {
        let around = self.mounted.iter().filter(|mounted| path.starts_with(&mounted.at));
        // The last of those at one place covers the others.
        around.max_by_key(|mounted| mounted.at.components().count())
    }

    fn on_host(&self, path: &Path) -> Option<PathBuf> {
        let (at, source) = match self.mount_of(path) {
            Some(mounted) => (mounted.at.as_path(), mounted.source?),
            None => (Path::new("/"), self.root),
        };
        let below = path.strip_prefix(at).unwrap_or(path);
        // `join("")` would end in a slash, and a file is none.
        Some(if below == Path::new("") { source.to_owned() } else { source.join(below) })
    }

    /// Follows links, also to what does not exist.
    fn locate(&self, path: &Path) -> Located {
        let mut found = PathBuf::from("/");
        // The next part is the last one.
        let mut parts: Vec<PathBuf> = Vec::new();
        let push = |parts: &mut Vec<PathBuf>, path: &Path| {
            parts.extend(path.components().rev().map(|part| PathBuf::from(part.as_os_str())));
        };
        push(&mut parts, path);
        let mut links = 0;
        while let Some(part) = parts.pop() {
            match part.components().next() {
                Some(Component::RootDir) => found = PathBuf::from("/"),
                Some(Component::ParentDir) => drop(found.pop()),
                Some(Component::Normal(name)) => {
                    let next = found.join(name);
                    let link = self.on_host(&next).and_then(|path| fs::read_link(path).ok());
                    match link.filter(|_| links < LINKS_MAX) {
                        Some(target) => {
                            links += 1;
                            push(&mut parts, &target);
                        }
                        None => found = next,
                    }
                }
                Some(Component::CurDir | Component::Prefix(_)) | None => {}
            }
        }
        Located { on_host: self.on_host(&found), path: found }
    }

    /// What is wrong with a mount there.
    fn problem(&self, target: &Path, located: &Located) -> Option<MountProblem> {
        let at = &located.path;
        if [DEVICES, FILES_DIR].iter().any(|path| Path::new(path).starts_with(at)) {
            return Some(match at {
                at if at != target => MountProblem::Link,
                at if at == Path::new("/") => MountProblem::Root,
                _ => MountProblem::Devices,
            });
        }
        let is_in_read_only = self.mount_of(at).is_some_and(|mounted| mounted.is_read_only);
        let is_there = located.on_host.as_ref().is_none_or(|path| path.exists());
        (is_in_read_only && !is_there).then_some(MountProblem::Missing)
    }

    /// The bind mount that one at `at` would hide.
    fn hidden_by(&self, at: &Path) -> Option<PathBuf> {
        let mut below = self.mounted.iter().filter(|mounted| {
            mounted.source.is_some() && mounted.at != at && mounted.at.starts_with(at)
        });
        below.next().map(|mounted| mounted.at.clone())
    }

    /// One that is missing in the container's own root is made there by the builder.
    fn check_working_directory(&self, cwd: &Path) -> Result<(), PlanError> {
        let Located { path, on_host: Some(on_host) } = self.locate(cwd) else { return Ok(()) };
        let is_mounted = self.mount_of(&path).is_some();
        if on_host.is_dir() || (!is_mounted && !on_host.exists()) {
            return Ok(());
        }
        Err(PlanError::WorkingDirectory { path: cwd.to_owned(), on_host })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    /// Mounts of these sources, targets and options, in an image with links.
    fn checked(mounts: &[(&str, &str, &str)], cwd: &str) -> Result<(), PlanError> {
        let dir = tempfile::tempdir().unwrap();
        let (root, data) = (dir.path().join("root"), dir.path().join("data"));
        for folder in [&root.join("etc"), &root.join("a/b"), &data.join("there")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(data.join("file"), "").unwrap();
        for (target, link) in [
            ("/dev", "to-dev"),
            ("../../dev/.", "a/b/up"),
            ("..", "to-root"),
            ("/to-dev", "twice"),
            ("loop", "loop"),
            ("/etc", "to-etc"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        fs::write(root.join("program"), "").unwrap();
        symlink("/dev", data.join("link")).unwrap();
        let mut all = vec![json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" })];
        for (source, target, option) in mounts {
            let source = if source.starts_with('/') { source.into() } else { data.join(source) };
            all.push(json!({
                "destination": target, "type": "none", "source": source, "options": ["rbind", option],
            }));
        }
        let process = json!({ "cwd": cwd, "user": { "uid": 0, "gid": 0 }, "args": ["f.wasm"] });
        let spec = json!({ "ociVersion": "1.0.2", "mounts": all, "process": process });
        check(&serde_json::from_value(spec).unwrap(), &root)
    }

    fn problem(mounts: &[(&str, &str, &str)]) -> Option<MountProblem> {
        match checked(mounts, "/") {
            Ok(()) => None,
            Err(PlanError::Mount { problem, .. }) => Some(problem),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn no_folder_of_the_host_gets_the_containers_devices() {
        for (target, expected) in [
            ("/", Some(MountProblem::Root)),
            ("//.", Some(MountProblem::Root)),
            ("/dev", Some(MountProblem::Devices)),
            ("//dev/.", Some(MountProblem::Devices)),
            ("/dev/cwasi", Some(MountProblem::Devices)),
            ("/to-dev", Some(MountProblem::Link)),
            ("/twice", Some(MountProblem::Link)),
            ("/a/b/up", Some(MountProblem::Link)),
            ("/to-root", Some(MountProblem::Link)),
            ("/a/../to-dev", Some(MountProblem::Link)),
            // As a kubelet mounts it.
            ("/dev/termination-log", None),
            ("/data", None),
            ("/to-etc", None),
            ("/to-etc/new", None),
            ("/loop/x", None),
        ] {
            assert_eq!(problem(&[("", target, "rw")]), expected, "{target}");
        }
        // A link in a mounted folder.
        let inner = ("", "/data/link", "rw");
        assert_eq!(problem(&[("", "/data", "rw"), inner]), Some(MountProblem::Link));
        assert_eq!(problem(&[inner]), None);
    }

    #[test]
    fn a_mount_in_another_has_its_place_and_comes_after_it() {
        let outer = |access| ("", "/data", access);
        assert_eq!(problem(&[outer("ro"), ("", "/data/new", "ro")]), Some(MountProblem::Missing));
        assert_eq!(problem(&[outer("ro"), ("", "/data/there", "ro")]), None);
        assert_eq!(problem(&[outer("ro"), ("file", "/data/file", "ro")]), None);
        assert_eq!(problem(&[outer("rw"), ("", "/data/new", "ro")]), None);
        let hidden = checked(&[("", "/to-etc/in", "rw"), ("", "/etc", "rw")], "/").unwrap_err();
        let text = hidden.to_string();
        assert!(text.contains("/etc/in is hidden by the one at /etc"), "{text}");
    }

    #[test]
    fn sources_exist_and_are_what_the_target_is() {
        assert_eq!(problem(&[("", "/program", "rw")]), Some(MountProblem::Kind));
        assert_eq!(problem(&[("file", "/etc", "rw")]), Some(MountProblem::Kind));
        assert_eq!(problem(&[("file", "/program", "rw"), ("file", "/new", "ro")]), None);
        let text = checked(&[("none", "/data", "rw")], "/").unwrap_err().to_string();
        assert!(text.contains("/none, the source of the mount at /data, does not exist"), "{text}");
    }

    #[test]
    fn a_mounted_folder_has_the_working_directory() {
        let data = [("", "/data", "rw")];
        for cwd in ["/", "/data", "/data/there", "/etc", "/to-etc", "/new/one", "/dev/shm"] {
            assert!(checked(&data, cwd).is_ok(), "{cwd}");
        }
        for cwd in ["/data/new", "/data/file", "/data/file/x"] {
            let text = checked(&data, cwd).unwrap_err().to_string();
            assert!(text.contains(&format!("the working directory {cwd} is no folder")), "{text}");
        }
    }
}
