//! Removes groups that have ended, and remains of interrupted removals and writes. Keeps their edges, counts and spans.
//! Runs in launcher, shim daemon, `delete` and processes of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::group_lock;
use super::state::{self, ContainerRecord, GroupDir, StateDir, StateError};
use super::{kept_spans, metrics};

/// How the file of a container's record ends.
const RECORD: &str = "json";
/// A record that is not finished after this time never will be.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);
/// Prefix of a group directory's name during its removal; ids are hexadecimal.
const REMOVED: char = '.';
/// Number of ended groups whose edges are kept.
const EDGES_KEPT: usize = 64;

/// Removes a group whose daemon is dead and that has no containers.
///
/// # Errors
/// When its lock cannot be taken.
pub fn remove_dead_group(state: &StateDir, group: &GroupDir) -> Result<(), StateError> {
    if !group.path().exists() {
        return Ok(());
    }
    let _lock = group_lock::lock(group)?;
    remove_if_dead(state, group);
    Ok(())
}

/// Removes a group without daemon and containers. The caller holds the group's lock.
pub fn remove_if_dead(state: &StateDir, group: &GroupDir) {
    if !group_lock::answers(&group.socket()) && !has_containers(state, group) {
        remove_group(state, group);
    }
}

/// Removes groups whose launchers were killed before they had a daemon, those whose daemons were killed before their
/// first container, those of killed processes of the host, and remains of interrupted removals and writes. Blocks.
pub fn sweep(state: &StateDir) {
    remove_unfinished_records(state);
    let groups = fs::read_dir(state.root().join("g")).into_iter().flatten().flatten();
    for entry in groups {
        let Some(group) = entry.file_name().to_str().map(|id| state.group(id)) else { continue };
        if group.id().starts_with(REMOVED) {
            // Another process may remove it at the same time.
            let _removed = fs::remove_dir_all(group.path());
            continue;
        }
        // A running launcher holds the lock, also while it waits for its daemon's pid.
        if !has_process(&group)
            && let Some(_lock) = group_lock::try_lock(&group)
            && !has_process(&group)
        {
            remove_if_dead(state, &group);
        }
    }
}

/// True if a process has the id of the group's daemon. Whether that is the daemon, its socket says.
fn has_process(group: &GroupDir) -> bool {
    let pid = fs::read_to_string(group.pid()).unwrap_or_default();
    !pid.is_empty() && Path::new("/proc").join(pid.trim()).exists()
}

/// Removes records whose writers were killed.
fn remove_unfinished_records(state: &StateDir) {
    for entry in fs::read_dir(state.root().join("c")).into_iter().flatten().flatten() {
        let is_old = || {
            let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            Some(age > UNFINISHED_AGE)
        };
        let path = entry.path();
        let is_record = path.extension().is_some_and(|extension| extension == RECORD);
        if !is_record && is_old() == Some(true) {
            logged(state::remove_file(&path));
        }
    }
}

/// Removes a group's directory and keeps its edges and spans. The caller holds the group's lock.
pub fn remove_group(state: &StateDir, group: &GroupDir) {
    let kept = state.kept_edges(group.id());
    // Nothing asks for those of a process of the host.
    if !group.is_of_host()
        && let Ok(bytes) = fs::read(group.edges())
    {
        logged(state::write_file(&kept, &bytes));
        forget_old_edges(&state.root().join("edges"));
    }
    logged(metrics::node::move_to_sums(state, group));
    logged(kept_spans::keep_ended(&group.spans(), group.id(), &state.kept_spans()));
    // Renamed first: a launcher may create the group's directory again during the removal.
    let removed_dir =
        group.path().with_file_name(format!("{REMOVED}{}.{}", group.id(), std::process::id()));
    let removed =
        fs::rename(group.path(), &removed_dir).and_then(|()| fs::remove_dir_all(&removed_dir));
    if let Err(error) = removed {
        tracing::warn!(path = %removed_dir.display(), %error, "group directory is not removed");
    }
}

/// Keeps the newest [`EDGES_KEPT`] files.
fn forget_old_edges(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let surplus = files.len().saturating_sub(EDGES_KEPT);
    for (_, path) in &files[..surplus] {
        logged(state::remove_file(path));
    }
}

fn has_containers(state: &StateDir, group: &GroupDir) -> bool {
    let records: Vec<PathBuf> = fs::read_dir(state.root().join("c"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        // Without records that are being written: a living daemon answers for them, and a dead one's never were.
        .filter(|path| path.extension().is_some_and(|extension| extension == RECORD))
        .collect();
    records.iter().any(|path| match state::read_json::<ContainerRecord>(path) {
        Ok(record) => record.is_some_and(|record| record.group == group.id()),
        // Damaged: it may be of this group.
        Err(_) => true,
    })
}

fn logged(result: Result<(), StateError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a state file is not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_ended_groups_are_kept_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        for number in 0..EDGES_KEPT + 3 {
            let group = state.group(&format!("g{number}"));
            fs::create_dir_all(group.path()).unwrap();
            fs::write(group.edges(), "[]").unwrap();
            remove_group(&state, &group);
        }
        assert_eq!(fs::read_dir(dir.path().join("edges")).unwrap().count(), EDGES_KEPT);
        assert_eq!(fs::read_dir(dir.path().join("g")).unwrap().count(), 0);
    }

    #[test]
    fn a_group_without_daemon_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let [killed, ended, busy, served, half] =
            ["killed", "ended", "busy", "served", ".half.7"].map(|id| state.group(id));
        drop(group_lock::lock(&killed).unwrap());
        // Beyond the largest process id.
        state::write_file(&ended.pid(), b"4194305").unwrap();
        state::write_file(&half.pid(), b"1").unwrap();
        let _held = group_lock::lock(&busy).unwrap();
        state::write_file(&served.pid(), b"1").unwrap();
        sweep(&state);
        let left = [killed, ended, busy, served, half].map(|group| group.path().exists());
        assert_eq!(left, [false, false, true, true, false]);
    }

    #[test]
    fn a_record_that_was_never_finished_keeps_no_group() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let group = state.group("g");
        let unfinished = state.record("n", "a").with_extension("7.new");
        fs::create_dir_all(group.path()).unwrap();
        state::write_file(&unfinished, b"{\"namespace\": \"n").unwrap();
        remove_dead_group(&state, &group).unwrap();
        assert!(!group.path().exists());
        // It may still be written; later it goes, too.
        sweep(&state);
        assert!(unfinished.exists());
        let old = std::time::SystemTime::now() - 2 * UNFINISHED_AGE;
        fs::File::options().write(true).open(&unfinished).unwrap().set_modified(old).unwrap();
        sweep(&state);
        assert!(!unfinished.exists());
    }

    #[test]
    fn a_group_with_another_container_stays() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let record = ContainerRecord {
            namespace: "n".into(),
            id: "a".into(),
            group: "g".into(),
            bundle: dir.path().into(),
            rootfs: dir.path().into(),
            rootfs_mounted: false,
            pid: 0,
            pid_started: 0,
            cgroups: Vec::new(),
            shim_pid: 0,
            shim_started: 0,
            registered: None,
            receiver: None,
        };
        let group = state.group("g");
        fs::create_dir_all(group.path()).unwrap();
        state::write_json(&state.record("n", "a"), &record).unwrap();
        remove_dead_group(&state, &group).unwrap();
        assert!(group.path().exists());
    }
}
