//! The mounts of a function's container, without those that only native programs use. Runs in the builder.
//!
//! A guest sees its image's files and the operator's mounts (`docs/files.md`). The processes that run it need `/dev`,
//! and of `/proc` what belongs to processes. Each other file system of the kernel would take time at the start, memory
//! for as long as the function is there, and give a compromised worker one more way into the kernel.

use std::path::Path;

use libcontainer::oci_spec::runtime::{Mount, Spec};

/// File systems that no process of a function opens.
const UNUSED: [&str; 5] = ["cgroup", "cgroup2", "devpts", "mqueue", "sysfs"];
/// Where a tmpfs is mounted that guests do not see. A mount in it is made in the image's folder instead, where they see
/// it.
const UNUSED_TMPFS: [&str; 2] = ["/dev/shm", "/run"];
const PROC: &str = "/proc";
/// Option of a `proc` that shows processes only (Linux 5.8).
const PROCESSES_ONLY: &str = "subset=pid";

/// Removes the mounts that no process of a function uses. Files of the kernel in which others are mounted, or the
/// working directory is, stay. Nothing changes for a container with hooks, which may use all of them.
pub fn apply(spec: &mut Spec) {
    if spec.hooks().is_some() {
        return;
    }
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let cwd = spec.process().as_ref().map(|process| process.cwd().clone());
    let used = mounts.iter().filter(|mount| !is_unused(mount));
    let used: Vec<_> = used.map(|mount| mount.destination().clone()).chain(cwd).collect();
    let contains = |mount: &Mount| used.iter().any(|path| is_inside(path, mount.destination()));
    mounts.retain(|mount| !is_unused(mount) || (contains(mount) && !is_unused_tmpfs(mount)));
    let sysctl = spec.linux().as_ref().and_then(|linux| linux.sysctl().as_ref());
    if sysctl.is_none_or(|values| values.is_empty()) {
        let proc = mounts.iter_mut().filter(|mount| mount.typ().as_deref() == Some("proc"));
        proc.filter(|mount| !contains(mount)).for_each(show_processes_only);
    }
    spec.set_mounts(Some(mounts));
}

fn is_unused(mount: &Mount) -> bool {
    let Some(kind) = mount.typ().as_deref() else { return false };
    UNUSED.contains(&kind) || is_unused_tmpfs(mount)
}

fn is_unused_tmpfs(mount: &Mount) -> bool {
    let place = mount.destination();
    mount.typ().as_deref() == Some("tmpfs")
        && UNUSED_TMPFS.iter().any(|unused| place == Path::new(unused))
}

/// True for a path below `directory`.
fn is_inside(path: &Path, directory: &Path) -> bool {
    path != directory && path.starts_with(directory)
}

fn show_processes_only(proc: &mut Mount) {
    let mut options = proc.options().clone().unwrap_or_default();
    if proc.destination() == Path::new(PROC)
        && !options.iter().any(|option| option.starts_with("subset="))
    {
        options.push(PROCESSES_ONLY.to_owned());
        proc.set_options(Some(options));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The mounts that containerd gives every container, and `more`.
    fn spec(more: Value) -> Spec {
        let mut mounts = json!([
            { "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts" },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm" },
            { "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue" },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs" },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup" },
            { "destination": "/run", "type": "tmpfs", "source": "tmpfs" }
        ]);
        mounts.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
        let process = json!({ "cwd": "/", "user": { "uid": 0, "gid": 0 }, "args": ["f.wasm"] });
        serde_json::from_value(json!({
            "ociVersion": "1.0.2", "mounts": mounts, "process": process, "linux": {}
        }))
        .unwrap()
    }

    fn left(mut spec: Spec) -> (Vec<String>, bool) {
        apply(&mut spec);
        let mounts = spec.mounts().clone().unwrap();
        let limited = mounts[0].options().iter().flatten().any(|option| option == PROCESSES_ONLY);
        let targets = mounts.iter().map(|mount| mount.destination().display().to_string());
        (targets.collect(), limited)
    }

    fn names(targets: &[&str]) -> Vec<String> {
        targets.iter().map(|place| (*place).to_owned()).collect()
    }

    #[test]
    fn a_function_has_dev_its_processes_and_the_operators_mounts() {
        assert_eq!(left(spec(json!([]))), (names(&["/proc", "/dev"]), true));
        let data = json!([
            { "destination": "/data", "type": "bind", "source": "/srv" },
            { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" }
        ]);
        assert_eq!(left(spec(data)).0, names(&["/proc", "/dev", "/data", "/tmp"]));
    }

    #[test]
    fn a_mount_stays_for_what_is_in_it() {
        let inside =
            |place: &str| json!([{ "destination": place, "type": "bind", "source": "/x" }]);
        for (place, kept, limited) in [("/sys/x", "/sys", true), ("/proc/cpuinfo", "/proc", false)]
        {
            let (targets, shows_processes_only) = left(spec(inside(place)));
            assert!(targets.contains(&kept.to_owned()), "{place}: {targets:?}");
            assert_eq!(shows_processes_only, limited, "{place}");
        }
        let mut in_sys = spec(json!([]));
        let mut process = in_sys.process().clone().unwrap();
        process.set_cwd("/sys/work".into());
        in_sys.set_process(Some(process));
        assert_eq!(left(in_sys).0, names(&["/proc", "/dev", "/sys"]));
        // A guest sees nothing of a tmpfs there.
        for place in ["/run/secrets/x", "/dev/shm/x"] {
            assert_eq!(left(spec(inside(place))).0, names(&["/proc", "/dev", place]));
        }
    }

    #[test]
    fn hooks_and_sysctls_find_what_they_use() {
        let mut hooked = spec(json!([]));
        hooked.set_hooks(Some(serde_json::from_value(json!({})).unwrap()));
        assert_eq!(left(hooked.clone()).0.len(), 8);
        let mut with_sysctl = spec(json!([]));
        let linux = json!({ "sysctl": { "net.core.somaxconn": "9" } });
        with_sysctl.set_linux(Some(serde_json::from_value(linux).unwrap()));
        assert!(!left(with_sysctl).1);
    }
}
