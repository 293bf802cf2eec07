//! `start`: finds the group's daemon or starts it, and prints its address.
//!
//! Everything happens under the group's lock, and the start leaves a mark that keeps the daemon alive until
//! containerd's `Create` arrives: between this program's end and that call nothing else would.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, PipeReader, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::caller::Caller;
use super::cleanup;
use super::group::{self, GroupError};
use super::group_lock::{LockError, answers, lock};
use super::spawn::{SpawnError, beside, spawn};
use super::state::{self, GroupDir, Pointer, StateDir, StateError};
use crate::config::NodeConfig;

/// Name of the daemon's program.
const PROGRAM: &str = "cwasi-shim";
/// Descriptor on which the daemon finds its listening socket.
pub const LISTENER_FD: i32 = 3;
/// Descriptor on which the daemon says that it is ready, or why not.
pub const READY_FD: i32 = 4;
/// What a ready daemon writes.
pub const READY: &str = "ready";
/// Longest report of a daemon that did not start, in bytes.
const REPORT_MAX: u64 = 64 * 1024;
/// Bytes of the end of a log that stand for the report of a daemon that ended without one.
const LOG_TAIL_MAX: usize = 2 * 1024;
/// File in the bundle where containerd 1.x looks for the address after a restart.
const ADDRESS_FILE: &str = "address";

/// A start that failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The bundle.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The group's lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// State files.
    #[error(transparent)]
    State(#[from] StateError),
    /// The daemon's program.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The file system or a socket refuses.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The daemon ended before it was ready.
    #[error("the shim daemon did not start: {report}")]
    NotReady {
        /// What it said, or the end of its log.
        report: String,
    },
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    let path = path.to_owned();
    move |source| LaunchError::Io { operation, path, source }
}

/// Answers `start`: the address of the group's daemon.
///
/// # Errors
/// When there is none and none can be started; then nothing of the start is left.
pub fn start(caller: &Caller, bundle: &Path, config: &NodeConfig) -> Result<String, LaunchError> {
    let state = StateDir::new(&config.state_dir);
    let group_id = group::group_of_bundle(bundle, &caller.namespace, &caller.id)?;
    let group = state.group(&group_id);
    let _lock = lock(&group)?;
    let started = start_locked(caller, bundle, config, &group);
    if started.is_err() {
        // containerd asks for no `delete` after a start that failed.
        drop(state::remove_file(&group.start_mark(&caller.namespace, &caller.id)));
        cleanup::remove_if_dead(&state, &group);
    }
    started
}

fn start_locked(
    caller: &Caller,
    bundle: &Path,
    config: &NodeConfig,
    group: &GroupDir,
) -> Result<String, LaunchError> {
    if answers(&group.socket()) {
        return announce(caller, bundle, config, group);
    }
    let daemon = spawn_daemon(caller, group, config)?;
    // While it is loaded. It ends without tasks only after it had this lock.
    let started = announce(caller, bundle, config, group)
        .and_then(|address| wait_ready(daemon.report, group).map(|()| address));
    if started.is_err() {
        // It would serve nobody, in a group's directory that nobody removes.
        kill(daemon.pid);
    }
    started
}

/// Writes what `Create` and `delete` find of this start; returns the daemon's address.
fn announce(
    caller: &Caller,
    bundle: &Path,
    config: &NodeConfig,
    group: &GroupDir,
) -> Result<String, LaunchError> {
    Pointer { state_dir: config.state_dir.clone(), group: group.id().to_owned() }.write(bundle)?;
    let mark = group.start_mark(&caller.namespace, &caller.id);
    state::write_file(&mark, bundle.as_os_str().as_bytes())?;
    let address = format!("unix://{}", group.socket().display());
    state::write_file(&bundle.join(ADDRESS_FILE), address.as_bytes())?;
    Ok(address)
}

/// Kills a child and waits for its end.
fn kill(pid: Pid) {
    // It may have ended by itself.
    let _ended = nix::sys::signal::kill(pid, Signal::SIGKILL);
    let _reaped = waitpid(pid, None);
}

/// A daemon that is being loaded.
struct Loading {
    pid: Pid,
    /// Where it says that it is ready, or why not.
    report: PipeReader,
}

fn spawn_daemon(
    caller: &Caller,
    group: &GroupDir,
    config: &NodeConfig,
) -> Result<Loading, LaunchError> {
    state::write_json(&group.config(), config)?;
    let socket = group.socket();
    // A socket that nobody answers belongs to a daemon that was killed.
    state::remove_file(&socket)?;
    let listener = UnixListener::bind(&socket).map_err(failed("listen on", &socket))?;
    let log_path = group.log();
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.map_err(failed("open", &log_path))?;
    let null = File::open("/dev/null").map_err(failed("open", Path::new("/dev/null")))?;
    let (ready, ready_writer) = io::pipe().map_err(failed("make a pipe for", group.path()))?;
    let program = beside(PROGRAM)?;
    let mut arguments: Vec<&OsStr> = Vec::new();
    for (flag, value) in [
        ("-namespace", OsStr::new(&caller.namespace)),
        ("-id", OsStr::new(&caller.id)),
        ("-address", OsStr::new(&caller.address)),
        ("-socket", group.path().as_os_str()),
    ] {
        arguments.extend([OsStr::new(flag), value]);
    }
    if caller.debug {
        arguments.push(OsStr::new("-debug"));
    }
    // Standard streams are replaced: containerd waits for the end of ours.
    let descriptors = [
        (null.as_fd(), 0),
        (log.as_fd(), 1),
        (log.as_fd(), 2),
        (listener.as_fd(), LISTENER_FD),
        (ready_writer.as_fd(), READY_FD),
    ];
    let pid = Pid::from_raw(spawn(&program, &arguments, &descriptors)?);
    Ok(Loading { pid, report: ready })
}

/// Waits until a daemon is ready.
fn wait_ready(ready: PipeReader, group: &GroupDir) -> Result<(), LaunchError> {
    let mut report = Vec::new();
    let mut ready = BufReader::new(ready.take(REPORT_MAX));
    loop {
        let read = ready.fill_buf().map_err(failed("read the daemon's report in", group.path()))?;
        let len = read.len();
        report.extend_from_slice(read);
        // Its end of the pipe may stay open for a while: the daemon has other things to do.
        if report == READY.as_bytes() {
            return Ok(());
        }
        if len == 0 {
            break;
        }
        ready.consume(len);
    }
    state::remove_file(&group.socket())?;
    let mut report = String::from_utf8_lossy(&report).into_owned();
    if report.is_empty() {
        report = format!("it ended without a word; its log ends with: {}", log_tail(group));
    }
    Err(LaunchError::NotReady { report })
}

/// The last lines of the daemon's log, which goes with the group.
fn log_tail(group: &GroupDir) -> String {
    let log = fs::read(group.log()).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL_MAX)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}
