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

use super::poststop::Poststop;
use super::publisher::timestamp;
use super::session::{self, Stat};
use super::{cgroups, rootfs};
use cwasi_config::{NodeConfig, NodeConfigError};
use cwasi_coordinator::registry::Registry;
use cwasi_host::ended_groups;
use cwasi_host::group_lock;
use cwasi_host::state::{
    self, ContainerRecord, GroupDir, Pointer, StateDir, StateError, container_key,
};
use cwasi_sys::pidfd::PidFd;
use cwasi_wire::control::COPIES_DIR;

/// Exit status of a container that `delete` ended.
const STATUS_KILLED: u32 = 137;
/// Longest wait for a living daemon to remove a container.
const DAEMON_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the end of a daemon that was killed.
const DAEMON_END_MAX: Duration = Duration::from_secs(3);
/// Pause between two attempts.
const DAEMON_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for one answer of a daemon.
const CALL_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The state directory is unknown.
    #[error(transparent)]
    Config(#[from] NodeConfigError),
    #[error(transparent)]
    State(#[from] StateError),
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
    let mut poststop = None;
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
        if let Some(record) = record.filter(|_| answer != DeleteReply::Deletes) {
            end_session(&record, answer);
            poststop = Poststop::of(&record, &oci_folder(&state, &record));
            remove(&state, &record);
        }
        remove_unfinished(&path);
    }
    response.set_pid(record.map_or(0, |record| u32::try_from(record.pid).unwrap_or(0)));
    if let Some(group) = group {
        ended_groups::remove_dead_group(&state, &group)?;
    }
    if let Some(hooks) = poststop {
        hooks.run();
    }
    Ok(response.write_to_bytes().expect("a message without required fields can always be written"))
}

/// Ends what the daemon of a record left. A killed daemon closes its socket before it has ended, and its children are
/// orphans only after its end.
fn end_session(record: &ContainerRecord, answer: DeleteReply) {
    let container = &record.id;
    if answer == DeleteReply::NoDaemon
        && record.shim_pid > 0
        && !session::has_ended(record.shim_pid, Some(record.shim_started), DAEMON_END_MAX)
    {
        tracing::error!(container, "its shim does not serve, and does not end");
    }
    if !session::end_orphans(record.shim_pid, record.shim_started) {
        tracing::error!(container, "processes that its shim left cannot be killed");
    }
}

/// Removes what a killed daemon had written of a container's record when it was killed.
fn remove_unfinished(record: &Path) {
    for (path, writer) in state::unfinished(record) {
        if session::has_ended(writer, None, DAEMON_END_MAX) {
            logged(state::remove_file(&path));
        }
    }
}

/// A daemon's answer about a container to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeleteReply {
    /// The daemon has deleted it, or will.
    Deletes,
    /// The daemon has no such container: resources in the record are leftovers.
    Unknown,
    /// No daemon answers: they are leftovers, too.
    NoDaemon,
}

/// Asks a living daemon to remove the container after its creation.
fn ask_daemon(group: &GroupDir, id: &str) -> DeleteReply {
    let Ok(client) = Client::connect(&format!("unix://{}", group.socket().display())) else {
        return DeleteReply::NoDaemon;
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
            Err(_) if !group_lock::answers(&group.socket()) => return DeleteReply::NoDaemon,
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
    let key = container_key(&record.namespace, &record.id);
    let copies = state.group(&record.group).oci().join(COPIES_DIR);
    // A killed builder leaves the second directory.
    for left in [oci_folder(state, record), copies.join(&key)] {
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

/// libcontainer's folder of a container: it is there from the creation of the container to its deletion.
fn oci_folder(state: &StateDir, record: &ContainerRecord) -> PathBuf {
    let key = container_key(&record.namespace, &record.id);
    state.group(&record.group).oci().join(key)
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

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_host::state::RegisteredAs;
    use cwasi_wire::ids::Identity;
    use serde_json::{Value, json};

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
    fn delete_leaves_nothing_and_repeats() {
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
    fn delete_runs_poststop_once_if_the_container_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let (state, record) = (StateDir::new(dir.path()), record(dir.path()));
        let (kept, bundle) = (dir.path().join("kept"), &record.bundle);
        let script = format!("cat >> {}", kept.display());
        let hook = |script: &str, timeout: u32| json!({ "path": "/bin/sh", "args": ["sh", "-c", script], "timeout": timeout });
        // The first ones fail: no program, its exit code, its time.
        let hooks = json!([
            { "path": "/none" }, hook("echo no >&2; exit 3", 9), hook("exec sleep 1000", 1),
            hook(&script, 9)
        ]);
        let spec = json!({
            "ociVersion": "1.0.2", "annotations": { "a": "b" }, "hooks": { "poststop": hooks }
        });
        fs::create_dir_all(bundle).unwrap();
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        Pointer { state_dir: dir.path().into(), group: "g".into() }.write(bundle).unwrap();
        let delete_one = || {
            state::write_json(&state.record("n", "a"), &record).unwrap();
            delete("n", "a", bundle).unwrap();
            delete("n", "a", bundle).unwrap();
        };
        delete_one();
        assert!(!kept.exists(), "libcontainer has run them");
        fs::create_dir_all(oci_folder(&state, &record)).unwrap();
        delete_one();
        let text = fs::read_to_string(&kept).unwrap();
        let given: Value = serde_json::from_str(&text).unwrap();
        let expected = json!({
            "ociVersion": "1.0.2", "id": "a", "status": "stopped", "bundle": bundle,
            "annotations": { "a": "b" }
        });
        assert_eq!(given, expected);
    }

    #[test]
    fn delete_removes_the_record_that_a_killed_daemon_did_not_finish() {
        let dir = tempfile::tempdir().unwrap();
        let (state, bundle) = (StateDir::new(dir.path()), dir.path().join("bundle"));
        fs::create_dir_all(&bundle).unwrap();
        Pointer { state_dir: dir.path().into(), group: "g".into() }.write(&bundle).unwrap();
        // The number is beyond the largest process id.
        let unfinished = |id| state.record("n", id).with_extension("4194305.new");
        for id in ["a", "b"] {
            state::write_file(&unfinished(id), b"{").unwrap();
        }
        state::write_file(&state.group("g").start_mark("n", "a"), b"").unwrap();
        delete("n", "a", &bundle).unwrap();
        assert!(!unfinished("a").exists());
        assert!(unfinished("b").exists(), "it is another container's");
    }

    #[test]
    fn delete_awaits_the_end_of_a_daemon_that_serves_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        let pid = i32::try_from(daemon.id()).unwrap();
        let started = Stat::of(pid).unwrap().started;
        let record = ContainerRecord { shim_pid: pid, shim_started: started, ..record(dir.path()) };
        let ending = std::thread::spawn(move || end_session(&record, DeleteReply::NoDaemon));
        daemon.kill().unwrap();
        ending.join().unwrap();
        assert!(Stat::of(pid).unwrap().is_zombie);
        daemon.wait().unwrap();
    }
}
