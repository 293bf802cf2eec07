//! A container's cgroups from outside: lists their processes, kills them, removes the cgroups. Runs in the shim
//! daemon and in `delete`.
//!
//! libcontainer makes and normally removes cgroups. This file answers questions (`ctr task ps`, OOM) and cleans up
//! after a killed daemon.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cwasi_config::cgroup::{CgroupDriver, CgroupsPathError};

/// Rounds of killing remaining processes.
const KILL_ROUNDS: u32 = 200;
/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(10);
/// Mount point of cgroup v2 when it has the controllers.
const UNIFIED: &str = "/sys/fs/cgroup";
/// Deepest nesting of cgroups.
const DEPTH_MAX: u32 = 16;

/// Extension of a scope's directory.
const SCOPE: &str = "scope";
/// This directory exists where systemd runs.
const SYSTEMD: &str = "/run/systemd/system";

/// A container's cgroups cannot be made on this host.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The specification is for another driver.
    #[error(transparent)]
    Path(#[from] CgroupsPathError),
    /// libcontainer makes scopes with cgroup v2 only.
    #[error(
        "the systemd cgroup driver (SystemdCgroup, cgroup_driver) needs cgroup v2, and {UNIFIED} of this host is cgroup v1: \
         use cgroupfs here, also for the kubelet (cgroupDriver), or boot the host with systemd.unified_cgroup_hierarchy=1"
    )]
    Legacy,
    #[error(
        "the systemd cgroup driver (SystemdCgroup, cgroup_driver) needs systemd, and {SYSTEMD} is not there"
    )]
    NoSystemd,
}

/// Path of a container's cgroup within each hierarchy. `asked` is its `cgroupsPath`; `key` names it without one.
///
/// # Errors
/// When `asked` is for the other driver, or the driver does not work on this host.
pub fn locate(
    driver: CgroupDriver,
    asked: Option<&Path>,
    key: &str,
) -> Result<PathBuf, DriverError> {
    let path = driver.locate(asked, key)?;
    if driver == CgroupDriver::Systemd {
        if !is_unified() {
            return Err(DriverError::Legacy);
        }
        if !Path::new(SYSTEMD).is_dir() {
            return Err(DriverError::NoSystemd);
        }
    }
    Ok(path)
}

/// True if the controllers are in cgroup v2.
fn is_unified() -> bool {
    Path::new(UNIFIED).join("cgroup.controllers").exists()
}

/// Cgroup directories of process `pid`. Roots, cgroups that this process is in, too, and those that others had before
/// (`shared`) are not the container's and are skipped.
#[must_use]
pub fn of_process(pid: i32, shared: &[PathBuf]) -> Vec<PathBuf> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let own = parse(&read("/proc/self/cgroup".to_owned()), mounts());
    let mut theirs = parse(&read(format!("/proc/{pid}/cgroup")), mounts());
    theirs.retain(|directory| !own.contains(directory) && !shared.contains(directory));
    theirs
}

/// Cgroup directories that libcontainer will make for a specification with `path`; and those among them that have
/// processes already, which are not the container's: its end must not kill them.
#[must_use]
pub fn to_be_made(path: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_free = |directory: &PathBuf| processes(std::slice::from_ref(directory)).is_empty();
    planned(path, mounts()).into_iter().partition(is_free)
}

/// The lines about cgroups of `/proc/self/mountinfo`, read once: the file has a line for each container of the node.
fn mounts() -> &'static str {
    static MOUNTS: OnceLock<String> = OnceLock::new();
    MOUNTS.get_or_init(|| {
        let all = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        all.lines().filter(|line| line.contains(" - cgroup")).collect::<Vec<_>>().join("\n")
    })
}

/// A directory for each hierarchy that libcontainer uses: cgroup v2 if it is mounted at the root, else every v1
/// hierarchy with controllers.
pub fn planned(path: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if !leads_below(relative) {
        return Vec::new();
    }
    let points = mountinfo.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        let mut system = system.split(' ');
        let is_used = match system.next()? {
            "cgroup2" => point == UNIFIED,
            "cgroup" => {
                let options = system.nth(1).unwrap_or_default();
                !options.split(',').any(|option| option.starts_with("name="))
            }
            _ => false,
        };
        is_used.then_some(point)
    });
    points.map(|point| Path::new(point).join(relative)).collect()
}

/// Starts the kernel's preparation for moving a process into a new cgroup; returns at once.
///
/// With cgroup v2 the first move waits for a grace period of RCU, 6 to 20 ms; moves soon after it do not. So this
/// process is "moved" to its own cgroup, on another thread, while the container is being prepared. With cgroup v1,
/// libcgroups moves single threads: they need no grace period, and would only wait for this move.
pub fn expect_a_move() {
    if !is_unified() {
        return;
    }
    let moving = std::thread::Builder::new().name("expect-a-move".to_owned()).spawn(|| {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let own = own(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        if let Some(directory) = own
            && let Err(error) = write_procs(&directory, std::process::id())
        {
            tracing::debug!(%error, path = %directory.display(), "the next container waits for RCU");
        }
    });
    // If this fails, the later move waits itself.
    drop(moving);
}

/// True for a path that leads to no root: what is there may be removed.
fn leads_below(relative: &Path) -> bool {
    let mut parts = relative.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Any cgroup of a process, roots included.
pub fn own(membership: &str, mountinfo: &str) -> Option<PathBuf> {
    membership.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let (root, mount_point) = hierarchy(controllers, mountinfo)?;
        let below = Path::new(path).strip_prefix(root).ok()?;
        // Joining an absolute path would lead out of the mount.
        let below = below.strip_prefix("/").unwrap_or(below);
        Some(Path::new(mount_point).join(below))
    })
}

/// Moves a process. Fails if `directory` is not a cgroup.
pub(super) fn write_procs(directory: &Path, pid: u32) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(directory.join("cgroup.procs"))?;
    file.write_all(pid.to_string().as_bytes())
}

/// Cgroup directories, from the texts of `/proc/<pid>/cgroup` and `/proc/self/mountinfo`.
pub fn parse(membership: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let relative = path.trim_start_matches('/');
        if relative.is_empty() || relative.split('/').any(|part| part == "..") {
            continue;
        }
        if let Some((root, mount_point)) = hierarchy(controllers, mountinfo) {
            let root = root.trim_matches('/');
            let below = relative.strip_prefix(root).unwrap_or(relative).trim_start_matches('/');
            if leads_below(Path::new(below)) {
                directories.push(Path::new(mount_point).join(below));
            }
        }
    }
    directories
}

/// Root and mount point of the hierarchy with exactly these controllers; the empty list is cgroup v2.
fn hierarchy<'a>(controllers: &str, mountinfo: &'a str) -> Option<(&'a str, &'a str)> {
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let kind = system.next()?;
        let options = system.nth(1).unwrap_or_default();
        let matches = match kind {
            "cgroup2" => controllers.is_empty(),
            "cgroup" => {
                !controllers.is_empty()
                    && controllers.split(',').all(|one| options.split(',').any(|o| o == one))
            }
            _ => false,
        };
        matches.then_some((root, point))
    })
}

/// All processes in these cgroups and below.
#[must_use]
pub fn processes(directories: &[PathBuf]) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for directory in directories {
        collect(directory, DEPTH_MAX, &mut found);
    }
    found
}

fn collect(directory: &Path, depth: u32, found: &mut BTreeSet<i32>) {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of another pid namespace.
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    if depth > 0 {
        for child in children(directory) {
            collect(&child, depth - 1, found);
        }
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Kills all processes in these cgroups; false if some remain.
#[must_use]
pub fn kill_all(directories: &[PathBuf]) -> bool {
    for _ in 0..KILL_ROUNDS {
        let left = processes(directories);
        if left.is_empty() {
            return true;
        }
        thaw(directories);
        for pid in left {
            // The process may have ended; the next round shows it.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(ROUND_PAUSE);
    }
    false
}

/// Thaws frozen processes: they would not take a signal.
pub fn thaw(directories: &[PathBuf]) {
    for directory in directories {
        for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let path = directory.join(file);
            if path.exists() {
                // The caller reports processes of a cgroup that stays frozen.
                let _ = fs::write(path, value);
            }
        }
    }
}

/// Removes these cgroups and their children. A cgroup with processes stays.
///
/// Waits for systemd to remove an empty scope: until then its unit exists, and its name cannot be used again.
pub fn remove(directories: &[PathBuf]) {
    for directory in directories {
        if directory.extension().is_some_and(|kind| kind == SCOPE) && Path::new(SYSTEMD).is_dir() {
            for _ in (0..KILL_ROUNDS).take_while(|_| directory.exists()) {
                std::thread::sleep(ROUND_PAUSE);
            }
        }
        remove_tree(directory, DEPTH_MAX);
    }
}

fn remove_tree(directory: &Path, depth: u32) {
    if depth > 0 {
        for child in children(directory) {
            remove_tree(&child, depth - 1);
        }
    }
    // A cgroup stays busy for a moment after its last process. libcontainer retries, too.
    for _ in 0..KILL_ROUNDS {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(ROUND_PAUSE);
            }
            _ => return,
        }
    }
}

/// Number of processes in these cgroups that the OOM killer ended.
#[must_use]
pub fn oom_kills(directories: &[PathBuf]) -> u64 {
    let files = directories.iter().flat_map(|directory| {
        ["memory.oom_control", "memory.events"].map(|file| directory.join(file))
    });
    files
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|text| oom_kills_in(&text))
        .max()
        .unwrap_or(0)
}

/// The number of kills in the content of `memory.events` or `memory.oom_control`.
#[must_use]
pub fn oom_kills_in(text: &str) -> u64 {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    text.lines().find_map(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";

    #[test]
    fn memberships_become_directories_and_roots_never_do() {
        let membership = "4:memory:/default/a\n3:cpu,cpuacct:/default/a\n2:name=systemd:/\n0::/";
        let expected = ["/sys/fs/cgroup/memory/default/a", "/sys/fs/cgroup/cpu,cpuacct/default/a"];
        assert_eq!(parse(membership, HYBRID), expected.map(PathBuf::from));
        let v2 = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(parse("0::/k/p", v2), [PathBuf::from("/sys/fs/cgroup/k/p")]);
        assert!(parse("0::/../../x", v2).is_empty());
    }

    #[test]
    fn a_planned_cgroup_is_never_a_root() {
        let made = planned(Path::new("/default/a"), HYBRID);
        let expected = ["/sys/fs/cgroup/cpu,cpuacct/default/a", "/sys/fs/cgroup/memory/default/a"];
        assert_eq!(made, expected.map(PathBuf::from));
        let v2 = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(planned(Path::new(":youki:a"), v2), [PathBuf::from("/sys/fs/cgroup/:youki:a")]);
        for root in ["", "/", "/..", "/a/../..", "."] {
            assert!(planned(Path::new(root), HYBRID).is_empty(), "{root}");
        }
    }

    #[test]
    fn a_hierarchy_mounted_from_below_its_root_is_followed() {
        let nested = "33 30 0:29 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let found = parse("4:memory:/docker/x/default/a", nested);
        assert_eq!(found, [PathBuf::from("/sys/fs/cgroup/memory/default/a")]);
        assert!(parse("4:memory:/docker/x", nested).is_empty());
    }

    #[test]
    fn a_process_is_found_where_it_is() {
        assert_eq!(own("9:name=systemd:/", HYBRID), Some("/sys/fs/cgroup/systemd/".into()));
        let nested = "33 30 0:29 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let inside = Some("/sys/fs/cgroup/memory/a".into());
        assert_eq!(own("5:cpu:/a\n4:memory:/docker/x/a", nested), inside);
        assert_eq!(own("4:memory:/elsewhere", nested), None);
        assert_eq!(own("4:memory:/../x\n", HYBRID), None);
        assert_eq!(parse("4:memory:/.\n5:cpu:/./.", HYBRID), Vec::<PathBuf>::new());
        let without_root = "30 25 0:26  /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(own("0::/a", without_root), Some("/sys/fs/cgroup/a".into()));
    }

    #[test]
    fn oom_kills_are_counted_in_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().to_owned()];
        assert_eq!(oom_kills(&paths), 0);
        fs::write(dir.path().join("memory.oom_control"), "under_oom 0\noom_kill 2\n").unwrap();
        assert_eq!(oom_kills(&paths), 2);
        fs::write(dir.path().join("memory.events"), "low 0\noom 1\noom_kill 3\n").unwrap();
        assert_eq!(oom_kills(&paths), 3);
    }

    #[test]
    fn this_process_is_never_among_the_containers() {
        assert!(of_process(i32::try_from(std::process::id()).unwrap(), &[]).is_empty());
    }
}
