//! Removes everything that belongs to a container. Runs in `delete`, and in the shim daemon.
//!
//! containerd runs `delete` whenever it lost the connection to a daemon; after a normal end nothing is left to do.
//! The container's record names each resource before it is made.
//!
//! Invariant: a living daemon removes its containers itself, also while it creates them. For a dead daemon, `delete`
//! first ends the processes that could still make resources ([`session`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use containerd_shim::api::{DeleteRequest, DeleteResponse, KillRequest};
use containerd_shim::protos::protobuf::Message as _;
use containerd_shim::protos::shim_sync::{Client, TaskClient};
use containerd_shim::protos::ttrpc::{self, Code, context};

use super::group_lock::{self, LockError};
use super::publisher::timestamp;
use super::session::{self, Stat};
use super::state::{self, ContainerRecord, GroupDir, Pointer, StateDir, StateError, container_key};
use super::{cgroups, kept_spans, metrics, rootfs};
use crate::config::{NodeConfig, NodeConfigError};
use crate::coordinator::registry::Registry;
use crate::sys::pidfd::PidFd;
use crate::wire::control::COPIES_DIR;

/// Exit status of a container that `delete` ended.
const STATUS_KILLED: u32 = 137;
/// Longest wait for a living daemon to remove a container.
const DAEMON_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const DAEMON_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for one answer of a daemon.
const CALL_MAX: Duration = Duration::from_secs(5);
/// How the file of a container's record ends.
const RECORD: &str = "json";
/// A record that is not finished after this time never will be.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);
/// Prefix of a group directory's name during its removal; ids are hexadecimal.
const GRAVE: char = '.';
/// Number of ended groups whose edges are kept.
const EDGES_KEPT: usize = 64;

/// A failed clean-up.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The state directory is unknown.
    #[error(transparent)]
    Config(#[from] NodeConfigError),
    /// State files.
    #[error(transparent)]
    State(#[from] StateError),
    /// The group's lock.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Removes all remains of a container. Returns the `DeleteResponse` for standard output.
///
/// # Errors
/// When a state file cannot be read.
pub fn delete(namespace: &str, id: &str, bundle: &Path) -> Result<Vec<u8>, CleanupError> {
    let pointer = Pointer::read(bundle)?;
    let state = match &pointer {
        Some(pointer) => StateDir::new(&pointer.state_dir),
        None => StateDir::new(&NodeConfig::load(None, None)?.state_dir),
    };
    let path = state.record(namespace, id);
    let record: Option<ContainerRecord> = state::read_json(&path)?;
    let group = record.as_ref().map(|record| record.group.clone());
    let group = group.or(pointer.map(|pointer| pointer.group)).map(|id| state.group(&id));
    let mut response = DeleteResponse::new();
    response.set_exit_status(STATUS_KILLED);
    response.set_exited_at(timestamp(SystemTime::now()));
    if let Some(group) = &group {
        let mark = group.start_mark(namespace, id);
        // After a normal end there is neither. `Create` writes the record before it removes the mark.
        let is_left = record.is_some() || mark.exists();
        let answer = if is_left { ask_daemon(group, id) } else { DeleteReply::Unknown };
        state::remove_file(&mark)?;
        // The record may have been written since.
        let record = if is_left { state::read_json::<ContainerRecord>(&path)? } else { None };
        if let Some(record) = record.filter(|_| answer == DeleteReply::Unknown) {
            if !session::end_orphans(record.shim_pid, record.shim_started) {
                tracing::error!(container = id, "processes that its shim left cannot be killed");
            }
            remove(&state, &record);
        }
    }
    response.set_pid(record.map_or(0, |record| u32::try_from(record.pid).unwrap_or(0)));
    if let Some(group) = group {
        remove_dead_group(&state, &group)?;
    }
    Ok(response.write_to_bytes().expect("a message without required fields can always be written"))
}

/// A daemon's answer about a container to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeleteReply {
    /// The daemon has deleted it, or will.
    Deletes,
    /// The daemon has no such container, or there is no daemon: resources in the record are leftovers.
    Unknown,
}

/// Asks a living daemon to remove the container after its creation.
fn ask_daemon(group: &GroupDir, id: &str) -> DeleteReply {
    let Ok(client) = Client::connect(&format!("unix://{}", group.socket().display())) else {
        return DeleteReply::Unknown;
    };
    let client = TaskClient::new(client);
    let mut kill = KillRequest::new();
    kill.set_id(id.to_owned());
    kill.set_signal(libc::SIGKILL.unsigned_abs());
    kill.set_all(true);
    let mut delete = DeleteRequest::new();
    delete.set_id(id.to_owned());
    let deadline = Instant::now() + DAEMON_MAX;
    while Instant::now() < deadline {
        // `delete` fails if the kill failed.
        let _ = client.kill(context::with_duration(CALL_MAX), &kill);
        match client.delete(context::with_duration(CALL_MAX), &delete) {
            Ok(_) => return DeleteReply::Deletes,
            Err(ttrpc::Error::RpcStatus(status)) if status.code() == Code::NOT_FOUND => {
                return DeleteReply::Unknown;
            }
            Err(ttrpc::Error::RpcStatus(_)) => std::thread::sleep(DAEMON_PAUSE),
            // The daemon died, or still creates the container.
            Err(_) if !group_lock::answers(&group.socket()) => return DeleteReply::Unknown,
            Err(_) => {}
        }
    }
    DeleteReply::Deletes
}

/// Ends and removes everything in a record. Logs failures instead of returning them.
///
/// Removes the resources that callers see first and the processes last: their end means that everything else is gone.
pub fn remove(state: &StateDir, record: &ContainerRecord) {
    withdraw(&Registry::new(state.root()), record);
    if record.rootfs_mounted {
        rootfs::unmount(&record.rootfs);
    }
    let (oci, key) =
        (state.group(&record.group).oci(), container_key(&record.namespace, &record.id));
    // A killed builder leaves the second directory.
    for left in [oci.join(&key), oci.join(COPIES_DIR).join(&key)] {
        if let Err(error) = fs::remove_dir_all(&left)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %left.display(), %error, "container state is not removed");
        }
    }
    kill_init(record);
    if !cgroups::kill_all(&record.cgroups) {
        tracing::error!(container = record.id, "some of its processes cannot be killed");
    }
    cgroups::remove(&record.cgroups);
    logged(state::remove_file(&state.record(&record.namespace, &record.id)));
}

/// Kills the recorded init, never a later process with its pid.
fn kill_init(record: &ContainerRecord) {
    let is_init = || Stat::of(record.pid).is_some_and(|stat| stat.started == record.pid_started);
    if record.pid <= 0 || record.pid_started == 0 || !is_init() {
        return;
    }
    // Compared again: an open pidfd cannot change its process.
    if let Ok(init) = PidFd::open(record.pid)
        && is_init()
    {
        // The process may have ended.
        let _ = init.signal(libc::SIGKILL);
    }
}

/// Removes a function's registry record and its receiver.
pub fn withdraw(registry: &Registry, record: &ContainerRecord) {
    if let Some(registered) = &record.registered
        && let Err(error) = registry.remove(&registered.identity, &registered.instance)
    {
        tracing::warn!(container = record.id, %error, "registry record is not removed");
    }
    if let Some(receiver) = &record.receiver {
        logged(state::remove_file(receiver));
    }
}

fn logged(result: Result<(), StateError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a state file is not removed");
    }
}

/// Removes a group whose daemon is dead and that has no containers.
fn remove_dead_group(state: &StateDir, group: &GroupDir) -> Result<(), CleanupError> {
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

/// Removes groups whose launchers were killed before they had a daemon, those of killed processes of the host, and
/// remains of interrupted removals and writes. Blocks.
pub fn sweep(state: &StateDir) {
    remove_unfinished_records(state);
    let groups = fs::read_dir(state.root().join("g")).into_iter().flatten().flatten();
    for entry in groups {
        let Some(group) = entry.file_name().to_str().map(|id| state.group(id)) else { continue };
        if group.id().starts_with(GRAVE) {
            // Another process may remove it at the same time.
            let _removed = fs::remove_dir_all(group.path());
            continue;
        }
        // A running launcher holds the lock, also while it waits for its daemon's pid.
        if !group.pid().exists()
            && let Some(_lock) = group_lock::try_lock(&group)
            && !group.pid().exists()
        {
            remove_if_dead(state, &group);
        }
    }
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
    let grave =
        group.path().with_file_name(format!("{GRAVE}{}.{}", group.id(), std::process::id()));
    let removed = fs::rename(group.path(), &grave).and_then(|()| fs::remove_dir_all(&grave));
    if let Err(error) = removed {
        tracing::warn!(path = %grave.display(), %error, "group directory is not removed");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::state::RegisteredAs;
    use crate::wire::ids::Identity;

    fn record(dir: &Path) -> ContainerRecord {
        let identity =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        ContainerRecord {
            namespace: "n".into(),
            id: "a".into(),
            group: "g".into(),
            bundle: dir.join("bundle"),
            rootfs: dir.join("bundle/rootfs"),
            rootfs_mounted: false,
            pid: 0,
            pid_started: 0,
            cgroups: Vec::new(),
            shim_pid: 0,
            shim_started: 0,
            registered: Some(RegisteredAs { identity, instance: "1".into() }),
            receiver: Some(dir.join("r/1.sock")),
        }
    }

    #[test]
    fn delete_leaves_nothing_of_a_dead_daemons_container_and_does_so_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (state, record) = (StateDir::new(dir.path()), record(dir.path()));
        let group = state.group("g");
        fs::create_dir_all(group.oci().join(container_key("n", "a"))).unwrap();
        fs::create_dir_all(dir.path().join("r")).unwrap();
        fs::write(record.receiver.as_ref().unwrap(), "").unwrap();
        fs::write(group.edges(), "[]").unwrap();
        state::write_json(&state.record("n", "a"), &record).unwrap();
        fs::create_dir_all(&record.bundle).unwrap();
        let pointer = Pointer { state_dir: dir.path().into(), group: "g".into() };
        pointer.write(&record.bundle).unwrap();
        for _ in 0..2 {
            let bytes = delete("n", "a", &record.bundle).unwrap();
            let response = DeleteResponse::parse_from_bytes(&bytes).unwrap();
            assert_eq!(response.exit_status, STATUS_KILLED);
            assert!(!group.path().exists());
            assert!(!state.record("n", "a").exists());
            assert!(!record.receiver.as_ref().unwrap().exists());
            assert!(state.kept_edges("g").exists());
        }
    }

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
    fn a_group_that_never_had_a_daemon_is_swept_up_unless_a_launcher_is_at_work() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let [killed, busy, served, half] =
            ["killed", "busy", "served", ".half.7"].map(|id| state.group(id));
        drop(group_lock::lock(&killed).unwrap());
        state::write_file(&half.pid(), b"1").unwrap();
        let _held = group_lock::lock(&busy).unwrap();
        state::write_file(&served.pid(), b"1").unwrap();
        sweep(&state);
        let left = [killed, busy, served, half].map(|group| group.path().exists());
        assert_eq!(left, [false, true, true, false]);
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
        let (state, record) = (StateDir::new(dir.path()), record(dir.path()));
        let group = state.group("g");
        fs::create_dir_all(group.path()).unwrap();
        state::write_json(&state.record("n", "a"), &record).unwrap();
        remove_dead_group(&state, &group).unwrap();
        assert!(group.path().exists());
    }
}
