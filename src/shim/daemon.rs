//! The shim daemon of one group: composes its parts, serves containerd, ends after the last task.
//!
//! Ends only under the group's lock, when no task is left and no start is under way (its mark in the group's
//! directory), so that a launcher never hands out the address of a daemon that is about to go.
#![expect(unsafe_code, reason = "takes the two descriptors that the launcher passes by number")]

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_shim::protos::shim_async::create_task;
use containerd_shim::protos::ttrpc;
use containerd_shim::protos::ttrpc::asynchronous::{Server, transport::Listener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::broker::Broker;
use super::caller::Caller;
use super::edges::Edges;
use super::group_lock::{self, LockError};
use super::launcher::{LISTENER_FD, READY, READY_FD};
use super::network::Network;
use super::publisher::Publisher;
use super::reaper::Reaper;
use super::session::Stat;
use super::state::{self, GroupDir, StateDir, StateError};
use super::task::TaskService;
use super::task::provision::Provisioner;
use super::task::table::{Parts, Tasks};
use super::zygote::{Zygote, ZygoteError};
use super::{cgroups, cleanup};
use crate::config::NodeConfig;
use crate::coordinator::registry::Registry;
use crate::modes::networked::link::LinkError;
use crate::sys::process::take_inherited;

/// Threads of the reactor; whatever blocks runs on others.
const WORKERS: usize = 2;
/// How long a start that was answered may keep the daemon alive without its `Create`.
const START_MAX: Duration = Duration::from_secs(60);
/// How often a daemon without tasks looks whether it may end.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for containerd to take the last events.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Longest wait for open connections at the end.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// A daemon that cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Arguments that a launcher would not pass.
    #[error("{0}; this program is started by containerd-shim-cwasi-v1")]
    Usage(String),
    /// Not started by a launcher.
    #[error("descriptor {number} was not passed: {source}; this action is for the launcher only")]
    Inherited {
        /// Which one.
        number: i32,
        /// Why it cannot be taken.
        #[source]
        source: io::Error,
    },
    /// The system refuses something that every daemon needs.
    #[error("{operation}: {source}")]
    System {
        /// What.
        operation: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// The directory is no group's.
    #[error("{} is no group directory of ours", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
    },
    /// State files.
    #[error(transparent)]
    State(#[from] StateError),
    /// The zygote.
    #[error(transparent)]
    Zygote(#[from] ZygoteError),
    /// The lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The networked buffer's configuration.
    #[error(transparent)]
    Network(#[from] LinkError),
    /// The Task service.
    #[error("the Task service cannot be served: {0}")]
    Serve(#[from] ttrpc::Error),
}

fn system(operation: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { operation, source }
}

/// Serves a group until its last task is gone. `arguments` are the launcher's, containerd's flags without an action: `-socket`
/// names the group's directory, as the daemon listens on an inherited descriptor.
///
/// # Errors
/// When it cannot start; the launcher was told as well.
pub fn run(arguments: &[OsString]) -> Result<(), DaemonError> {
    let flags =
        containerd_shim::parse(arguments).map_err(|error| DaemonError::Usage(error.to_string()))?;
    let caller = Caller::of(&flags);
    let caller =
        caller.ok_or_else(|| DaemonError::Usage("-namespace and -id are required".to_owned()))?;
    let directory = Path::new(&flags.socket);
    // SAFETY:
    // - first thing in this process: nothing else has opened or owns these numbers.
    let inherited = unsafe { (take_inherited(LISTENER_FD), take_inherited(READY_FD)) };
    let taken = |number| move |source| DaemonError::Inherited { number, source };
    let listener = inherited.0.map_err(taken(LISTENER_FD))?;
    let ready = inherited.1.map_err(taken(READY_FD))?;
    // The first container of most daemons follows at once.
    cgroups::expect_a_move();
    let mut report = Report(Some(fs::File::from(ready)));
    match compose(&caller, directory, listener, &mut report) {
        Ok((runtime, daemon)) => {
            let served = runtime.block_on(daemon.serve());
            // Threads that still block on something would keep the process; nothing of theirs matters now.
            runtime.shutdown_background();
            served
        }
        Err(error) => {
            report.say(&error.to_string());
            Err(error)
        }
    }
}

/// What the launcher hears, once.
struct Report(Option<fs::File>);

impl Report {
    fn say(&mut self, words: &str) {
        if let Some(mut launcher) = self.0.take() {
            // A launcher that was killed does not read it.
            let _ = launcher.write_all(words.as_bytes());
        }
    }
}

struct Daemon {
    group: GroupDir,
    state: StateDir,
    tasks: Arc<Tasks>,
    server: Server,
    terminate: Signal,
    interrupt: Signal,
}

fn compose(
    caller: &Caller,
    directory: &Path,
    listener: OwnedFd,
    report: &mut Report,
) -> Result<(tokio::runtime::Runtime, Daemon), DaemonError> {
    let not_ours = || DaemonError::Directory { path: directory.to_owned() };
    let id = directory.file_name().and_then(|name| name.to_str()).ok_or_else(not_ours)?;
    let config: NodeConfig =
        state::read_json(&directory.join("config.json"))?.ok_or_else(not_ours)?;
    let state = StateDir::new(&config.state_dir);
    let group = state.group(id);
    detach(caller, &config)?;
    state::write_file(&group.pid(), std::process::id().to_string().as_bytes())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(system("starting the reactor"))?;
    let listener = UnixListener::from(listener);
    let daemon =
        runtime.block_on(Daemon::start(caller, &config, group, state, listener, report))?;
    Ok((runtime, daemon))
}

/// Leaves everything of the first member: session, directory, logging.
fn detach(caller: &Caller, config: &NodeConfig) -> Result<(), DaemonError> {
    nix::unistd::setsid().map_err(|errno| system("setsid")(errno.into()))?;
    std::env::set_current_dir("/").map_err(system("chdir /"))?;
    // Inits whose parent died are ours as well.
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("becoming the subreaper")(errno.into()))?;
    let filter = if caller.debug { "debug" } else { config.log.as_str() };
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    Ok(())
}

impl Daemon {
    async fn start(
        caller: &Caller,
        config: &NodeConfig,
        group: GroupDir,
        state: StateDir,
        listener: UnixListener,
        report: &mut Report,
    ) -> Result<Self, DaemonError> {
        let reaper = Reaper::start().map_err(system("watching children"))?;
        let program = Zygote::program_file()?;
        let registry = Registry::new(state.root());
        let network = Network::start(config, &registry)?;
        fs::create_dir_all(group.oci())
            .map_err(StateError::io("create directory", &group.oci()))?;
        // What a user can have set up wrongly has been looked at. The socket listens already: calls that come meanwhile wait.
        report.say(READY);
        let zygote = Arc::new(Zygote::start(program, &reaper).await?);
        let edges = Edges::start(group.edges());
        let namespace = caller.namespace.as_str();
        let provisioner =
            Provisioner::new(config, &caller.address, namespace, group.id(), &zygote, &reaper);
        let pid = nix::unistd::getpid().as_raw();
        let tasks = Arc::new(Tasks::new(Parts {
            namespace: namespace.to_owned(),
            pid,
            started: Stat::of(pid).map_or(0, |stat| stat.started),
            state: state.clone(),
            group: group.clone(),
            reaper,
            zygote,
            publisher: Publisher::start(&caller.events_address, namespace),
            broker: Broker::new(registry, edges, network),
            provisioner,
        }));
        let listener = Listener::try_from(listener).map_err(system("listening"))?;
        let service = create_task(Arc::new(TaskService::new(Arc::clone(&tasks))));
        let mut server = Server::new().add_listener(listener).register_service(service);
        server.start().await?;
        let watched = |kind| signal(kind).map_err(system("watching signals"));
        tracing::info!(group = group.id(), namespace, "serving");
        let swept = state.clone();
        // Nobody waits for it.
        drop(tokio::task::spawn_blocking(move || cleanup::sweep(&swept)));
        Ok(Self {
            group,
            state,
            tasks,
            server,
            terminate: watched(SignalKind::terminate())?,
            interrupt: watched(SignalKind::interrupt())?,
        })
    }

    /// Serves until the last task is gone and nothing is under way.
    async fn serve(mut self) -> Result<(), DaemonError> {
        loop {
            tokio::select! {
                () = self.tasks.asked_to_end() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = self.terminate.recv() => self.explain_signal(),
                _ = self.interrupt.recv() => self.explain_signal(),
            }
            if self.tasks.is_empty() && self.close().await? {
                break;
            }
        }
        tracing::info!("ending");
        self.tasks.parts.zygote.stop().await;
        if tokio::time::timeout(CLOSE_MAX, self.server.shutdown()).await.is_err() {
            tracing::debug!("a connection was still open at the end");
        }
        Ok(())
    }

    fn explain_signal(&self) {
        if !self.tasks.is_empty() {
            tracing::warn!("asked to end by a signal; staying, because tasks are left");
        }
    }

    /// Closes the group for good, if it may be; later launchers then start another daemon.
    async fn close(&self) -> Result<bool, DaemonError> {
        self.tasks.parts.publisher.flush(FLUSH_MAX).await;
        self.tasks.parts.broker.edges().write_now().await;
        let (group, state, tasks) =
            (self.group.clone(), self.state.clone(), Arc::clone(&self.tasks));
        let closing = move || {
            let _lock = group_lock::lock(&group)?;
            if start_under_way(&group) || !tasks.close_if_empty() {
                return Ok(false);
            }
            cleanup::remove_group(&state, &group);
            Ok(true)
        };
        let closed = tokio::task::spawn_blocking(closing).await;
        closed.map_err(|error| system("closing the group")(error.into()))?
    }
}

/// True while a launcher has answered a start whose `Create` has not come yet. containerd removes the bundle, which the
/// mark names, when it gives a start up.
fn start_under_way(group: &GroupDir) -> bool {
    let marks = fs::read_dir(group.starts()).into_iter().flatten().flatten();
    marks.filter_map(|mark| Some((mark.path(), mark.metadata().ok()?.modified().ok()?))).any(
        |(mark, made)| {
            // A clock that was set back makes a mark young again, for a minute at most.
            SystemTime::now().duration_since(made).is_ok_and(|age| age < START_MAX)
                && fs::read(mark)
                    .is_ok_and(|bundle| Path::new(&OsString::from_vec(bundle)).exists())
        },
    )
}
