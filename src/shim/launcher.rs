//! `start`: finds or starts the group's daemon, and prints its address. Runs in the launcher.
//!
//! Invariant: all of it happens under the group's lock. The start leaves a mark that keeps the daemon alive until
//! containerd's `Create` arrives.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, PipeReader, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::arguments::ShimArguments;
use super::spawn::{SpawnError, beside, spawn};
use cwasi_config::NodeConfig;
use cwasi_config::node::CONFIG_VARIABLE;
use cwasi_host::ended_groups;
use cwasi_host::group::{self, GroupError};
use cwasi_host::group_lock::{answers, lock};
use cwasi_host::state::{self, GroupDir, PRIVATE_FILE, Pointer, StateDir, StateError};

const PROGRAM: &str = "cwasi-shim";
/// Descriptor of the daemon's listening socket.
pub const LISTENER_FD: i32 = 3;
/// Descriptor of the pipe for the daemon's report.
pub const READY_FD: i32 = 4;
/// Report of a ready daemon.
pub const READY: &str = "ready";
/// Longest report of a failed daemon in bytes.
const REPORT_MAX: u64 = 64 * 1024;
/// Length of the log's tail that replaces a missing report, in bytes.
const LOG_TAIL_MAX: usize = 2 * 1024;
/// File in the bundle from which containerd 1.x reads the address after a restart.
const ADDRESS_FILE: &str = "address";

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The daemon ended before it was ready.
    #[error("the shim daemon did not start: {report}")]
    NotReady {
        /// Its report, or the tail of its log.
        report: String,
    },
}

/// Answers `start` with the address of the group's daemon. `file` is that of the configuration, for errors.
///
/// # Errors
/// When there is no daemon and none can be started. Then nothing of the start remains.
pub fn start(
    arguments: &ShimArguments,
    bundle: &Path,
    config: &NodeConfig,
    file: Option<&Path>,
) -> Result<String, LaunchError> {
    let state = StateDir::new(&config.state_dir);
    state.prepare()?;
    let group_id = group::group_of_bundle(bundle, &arguments.namespace, &arguments.id)?;
    let group = state.group(&group_id);
    let _lock = lock(&group)?;
    let started = start_locked(arguments, bundle, config, file, &group);
    if started.is_err() {
        // containerd does not run `delete` after a failed start.
        drop(state::remove_file(&group.start_mark(&arguments.namespace, &arguments.id)));
        ended_groups::remove_if_dead(&state, &group);
    }
    started
}

fn start_locked(
    arguments: &ShimArguments,
    bundle: &Path,
    config: &NodeConfig,
    file: Option<&Path>,
    group: &GroupDir,
) -> Result<String, LaunchError> {
    if answers(&group.socket()) {
        return announce(arguments, bundle, config, group);
    }
    let daemon = spawn_daemon(arguments, group, (config, file), None)?;
    // The daemon loads meanwhile. It cannot end before it gets this lock.
    let started = announce(arguments, bundle, config, group)
        .and_then(|address| wait_ready(daemon.report, group).map(|()| address));
    if started.is_err() {
        // The daemon would have no container, in a directory that no process removes.
        kill(daemon.pid);
    }
    started
}

/// Writes the files for `Create` and `delete`; returns the daemon's address.
fn announce(
    arguments: &ShimArguments,
    bundle: &Path,
    config: &NodeConfig,
    group: &GroupDir,
) -> Result<String, LaunchError> {
    Pointer { state_dir: config.state_dir.clone(), group: group.id().to_owned() }.write(bundle)?;
    let mark = group.start_mark(&arguments.namespace, &arguments.id);
    state::write_file(&mark, bundle.as_os_str().as_bytes())?;
    let address = format!("unix://{}", group.socket().display());
    state::write_file(&bundle.join(ADDRESS_FILE), address.as_bytes())?;
    Ok(address)
}

/// Kills a child and waits for its end.
pub(super) fn kill(pid: Pid) {
    // The child may have ended.
    let _ended = nix::sys::signal::kill(pid, Signal::SIGKILL);
    let _reaped = waitpid(pid, None);
}

/// A daemon that is loading.
pub(super) struct StartingDaemon {
    pub(super) pid: Pid,
    /// Pipe for the daemon's report.
    pub(super) report: PipeReader,
}

/// Starts a group's daemon with a configuration and its file, and with an action if it is not one of containerd's.
pub(super) fn spawn_daemon(
    arguments: &ShimArguments,
    group: &GroupDir,
    (config, file): (&NodeConfig, Option<&Path>),
    action: Option<&str>,
) -> Result<StartingDaemon, LaunchError> {
    state::write_json(&group.config(), config)?;
    let socket = group.socket();
    // A socket without a listener belongs to a killed daemon.
    state::remove_file(&socket)?;
    let listener = UnixListener::bind(&socket).map_err(StateError::io("listen on", &socket))?;
    let log_path = group.log();
    let log = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(&log_path);
    let log = log.map_err(StateError::io("open", &log_path))?;
    let null = File::open("/dev/null").map_err(StateError::io("open", Path::new("/dev/null")))?;
    let (ready, ready_writer) =
        io::pipe().map_err(StateError::io("make a pipe for", group.path()))?;
    let program = beside(PROGRAM)?;
    let mut argv: Vec<&OsStr> = Vec::new();
    for (flag, value) in [
        ("-namespace", OsStr::new(&arguments.namespace)),
        ("-id", OsStr::new(&arguments.id)),
        ("-address", OsStr::new(&arguments.address)),
        ("-socket", group.path().as_os_str()),
    ] {
        argv.extend([OsStr::new(flag), value]);
    }
    if arguments.debug {
        argv.push(OsStr::new("-debug"));
    }
    argv.extend(action.map(OsStr::new));
    // Standard streams are replaced, because containerd waits for the end of ours.
    let descriptors = [
        (null.as_fd(), 0),
        (log.as_fd(), 1),
        (log.as_fd(), 2),
        (listener.as_fd(), LISTENER_FD),
        (ready_writer.as_fd(), READY_FD),
    ];
    // Errors of the daemon name the file to change.
    let file = file.and_then(Path::to_str).map(|file| (CONFIG_VARIABLE, file));
    let pid = spawn(&program, &argv, &descriptors, file.as_slice())?;
    let pid = Pid::from_raw(pid);
    Ok(StartingDaemon { pid, report: ready })
}

/// Waits until a daemon is ready.
pub(super) fn wait_ready(ready: PipeReader, group: &GroupDir) -> Result<(), LaunchError> {
    let mut report = Vec::new();
    let mut ready = BufReader::new(ready.take(REPORT_MAX));
    loop {
        let read = ready
            .fill_buf()
            .map_err(StateError::io("read the daemon's report in", group.path()))?;
        let len = read.len();
        report.extend_from_slice(read);
        // The daemon may keep its end of the pipe open.
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
        report = format!("it ended without a report; its log ends with: {}", log_tail(group));
    }
    Err(LaunchError::NotReady { report })
}

/// The last lines of the daemon's log, which is removed with the group.
fn log_tail(group: &GroupDir) -> String {
    let log = fs::read(group.log()).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL_MAX)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}
