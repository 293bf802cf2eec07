//! The shim daemon of one group: composes its parts, serves containerd, ends after the last task. Runs in the shim
//! daemon.
//!
//! Invariant: it ends only under the group's lock, without tasks and without a start under way (its mark is in the
//! group's directory). So a launcher never returns the address of an ending daemon.
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
use nix::unistd::getppid;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::arguments::ShimArguments;
use super::launcher::{LISTENER_FD, READY, READY_FD};
use super::oom_score;
use super::own_cgroup::{self, OwnCgroupError};
use super::publisher::Publisher;
use super::reaper::Reaper;
use super::session::Stat;
use super::task::TaskService;
use super::task::provision::Provisioner;
use super::task::table::{Parts, Tasks};
use super::zygote::ZygoteError;
use super::zygotes::Zygotes;
use super::{cgroups, daemon_log};
use cwasi_config::NodeConfig;
use cwasi_content::folder::FolderStore;
use cwasi_content::{ContentStore, Images};
use cwasi_coordinator::registry::Registry;
use cwasi_host::broker::Broker;
use cwasi_host::ended_groups;
use cwasi_host::group_lock;
use cwasi_host::metrics::Metrics;
use cwasi_host::network::{Network, node_name};
use cwasi_host::otlp::Exporter;
use cwasi_host::spans::Spans;
use cwasi_host::state::{self, GroupDir, StateDir, StateError, create_private_dir};
use cwasi_networked::link::LinkError;
use cwasi_sys::arenas;
use cwasi_sys::process::{die_with_parent, take_inherited};
use cwasi_wire::control::SandboxKind;

/// Threads of the reactor; blocking work has others.
const WORKERS: usize = 2;
/// How long a thread of the blocking pool waits for more work: the stacks of many starts at once take megabytes.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Longest time that a start without its `Create` keeps the daemon alive.
const START_MAX: Duration = Duration::from_secs(60);
/// Interval at which a daemon without tasks checks whether it may end.
const POLL_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for containerd to take the last events.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Longest wait for open connections at the end.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Action of a daemon without containerd.
pub const LOCAL_ACTION: &str = "local";

/// The daemon cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Arguments that a launcher would not pass.
    #[error("{0}; this program is started by containerd-shim-cwasi-v1")]
    Usage(String),
    /// The launcher's descriptors are missing.
    #[error("descriptor {number} was not passed: {source}; this action is for the launcher only")]
    Inherited {
        number: i32,
        #[source]
        source: io::Error,
    },
    /// A failed system call.
    #[error("{operation}: {source}")]
    System {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    /// Not a group's directory.
    #[error("{} is not a group directory of this runtime", path.display())]
    Directory { path: PathBuf },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Zygote(#[from] ZygoteError),
    #[error(transparent)]
    Cgroup(#[from] OwnCgroupError),
    /// The networked buffer's configuration.
    #[error(transparent)]
    Network(#[from] LinkError),
    #[error("the Task service cannot be served: {0}")]
    Serve(#[from] ttrpc::Error),
}

fn system(operation: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { operation, source }
}

/// Serves a group until its last task is gone. `arguments` are containerd's flags. `-socket` names the group's
/// directory; the daemon listens on an inherited descriptor. With the action [`LOCAL_ACTION`] it has no containerd: it
/// runs functions as processes of its user, and ends with its parent or when asked.
///
/// # Errors
/// When it cannot start; the launcher gets the same text.
pub fn run(arguments: &[OsString]) -> Result<(), DaemonError> {
    let flags =
        containerd_shim::parse(arguments).map_err(|error| DaemonError::Usage(error.to_string()))?;
    let arguments = ShimArguments::of(&flags);
    let arguments = arguments
        .ok_or_else(|| DaemonError::Usage("-namespace and -id are required".to_owned()))?;
    let sandbox = match flags.action.as_str() {
        "" => SandboxKind::Container,
        LOCAL_ACTION => SandboxKind::Process,
        other => return Err(DaemonError::Usage(format!("{other:?} is no action"))),
    };
    let directory = Path::new(&flags.socket);
    // SAFETY:
    // - first thing in this process: nothing else has opened or owns these numbers.
    let inherited = unsafe { (take_inherited(LISTENER_FD), take_inherited(READY_FD)) };
    let taken = |number| move |source| DaemonError::Inherited { number, source };
    let listener = inherited.0.map_err(taken(LISTENER_FD))?;
    let ready = inherited.1.map_err(taken(READY_FD))?;
    // Its threads are many and do little: in arenas of their own, what they freed would stay.
    arenas::share_one();
    let mut report = Report(Some(fs::File::from(ready)));
    match compose(&arguments, sandbox, directory, listener, &mut report) {
        Ok((runtime, daemon)) => {
            let served = runtime.block_on(daemon.serve());
            // Do not wait for blocked threads; their work no longer matters.
            runtime.shutdown_background();
            served
        }
        Err(error) => {
            report.say(&error.to_string());
            Err(error)
        }
    }
}

/// The launcher's pipe, for one report.
struct Report(Option<fs::File>);

impl Report {
    fn say(&mut self, words: &str) {
        if let Some(mut launcher) = self.0.take() {
            // A killed launcher does not read it.
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
    arguments: &ShimArguments,
    sandbox: SandboxKind,
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
    if sandbox == SandboxKind::Process {
        die_with_parent(getppid()).map_err(system("following the parent's end"))?;
    }
    detach(arguments, &config, group.log())?;
    own_cgroup::enter(&config.shim_cgroup)?;
    // Usually the first container follows at once.
    cgroups::expect_a_move();
    if let Err(error) = oom_score::exceed_containerds() {
        tracing::warn!(%error, "the OOM score stays containerd's");
    }
    state::write_file(&group.pid(), std::process::id().to_string().as_bytes())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .enable_all()
        .build()
        .map_err(system("starting the reactor"))?;
    let listener = UnixListener::from(listener);
    let starting = Daemon::start(arguments, sandbox, &config, group, state, listener, report);
    let daemon = runtime.block_on(starting)?;
    Ok((runtime, daemon))
}

/// Leaves the environment of the first container: session, directory, logging.
fn detach(arguments: &ShimArguments, config: &NodeConfig, log: PathBuf) -> Result<(), DaemonError> {
    nix::unistd::setsid().map_err(|errno| system("setsid")(errno.into()))?;
    std::env::set_current_dir("/").map_err(system("chdir /"))?;
    // Inits whose parents die become our children.
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("becoming the subreaper")(errno.into()))?;
    let filter = if arguments.debug { "debug" } else { config.log.as_str() };
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(daemon_log::writer(log))
        .with_ansi(false)
        .with_target(false)
        .init();
    Ok(())
}

impl Daemon {
    async fn start(
        arguments: &ShimArguments,
        sandbox: SandboxKind,
        config: &NodeConfig,
        group: GroupDir,
        state: StateDir,
        listener: UnixListener,
        report: &mut Report,
    ) -> Result<Self, DaemonError> {
        let reaper = Reaper::start().map_err(system("watching children"))?;
        let zygotes = Arc::new(Zygotes::open(config.engine, &reaper)?);
        let registry = Registry::new(state.root());
        let network = Network::start(config, &registry)?;
        create_private_dir(&group.oci())?;
        // All user configuration is checked. The socket listens already, so calls may arrive from now on.
        report.say(READY);
        zygotes.start_default().await?;
        let metrics = Metrics::start(&group);
        let exporter = config.traces.otlp.as_ref().map(Exporter::start);
        let spans = Spans::start(group.spans(), &node_name(&config.node), exporter);
        if let Some(network) = &network {
            network.count_triggers(metrics.clone(), spans.clone(), config.traces.sample);
        }
        let namespace = arguments.namespace.as_str();
        let (images, publisher) = outside(arguments, sandbox, config);
        let provisioner =
            Provisioner::new(config, images, namespace, group.id(), &zygotes, &reaper);
        let pid = nix::unistd::getpid().as_raw();
        let tasks = Arc::new(Tasks::new(Parts {
            namespace: namespace.to_owned(),
            pid,
            started: Stat::of(pid).map_or(0, |stat| stat.started),
            state: state.clone(),
            group: group.clone(),
            reaper,
            zygotes,
            publisher,
            broker: Broker::new(registry, metrics, spans, network),
            provisioner,
            cgroup_driver: config.cgroup_driver,
            sandbox,
            traces: config.traces.clone(),
        }));
        let listener = Listener::try_from(listener).map_err(system("listening"))?;
        let service = create_task(Arc::new(TaskService::new(Arc::clone(&tasks))));
        let mut server = Server::new().add_listener(listener).register_service(service);
        server.start().await?;
        let watched = |kind| signal(kind).map_err(system("watching signals"));
        tracing::info!(group = group.id(), namespace, "serving");
        let swept = state.clone();
        // Detached: the result is not needed.
        drop(tokio::task::spawn_blocking(move || ended_groups::sweep(&swept)));
        Ok(Self {
            group,
            state,
            tasks,
            server,
            terminate: watched(SignalKind::terminate())?,
            interrupt: watched(SignalKind::interrupt())?,
        })
    }

    /// Serves until the last task is gone and no start is under way.
    async fn serve(mut self) -> Result<(), DaemonError> {
        // Its parent may have paused between two functions.
        let is_local = self.tasks.parts.sandbox == SandboxKind::Process;
        loop {
            tokio::select! {
                () = self.tasks.asked_to_end() => {}
                () = tokio::time::sleep(POLL_EVERY), if !is_local => {}
                _ = self.terminate.recv() => self.explain_signal(),
                _ = self.interrupt.recv() => self.explain_signal(),
            }
            let closed = if self.tasks.is_empty() { self.close().await } else { Ok(false) };
            match closed {
                Ok(true) => break,
                Ok(false) => {}
                // A task may have come meanwhile.
                Err(error) if !is_local => tracing::warn!(%error, "the group does not end yet"),
                Err(error) => return Err(error),
            }
        }
        tracing::info!("ending");
        if let Some(network) = self.tasks.parts.broker.network() {
            network.close().await;
        }
        self.tasks.parts.zygotes.stop().await;
        if tokio::time::timeout(CLOSE_MAX, self.server.shutdown()).await.is_err() {
            tracing::debug!("a connection was still open at the end");
        }
        Ok(())
    }

    fn explain_signal(&self) {
        if !self.tasks.is_empty() {
            tracing::warn!("ignoring a signal to end, because there are tasks");
        }
    }

    /// Closes the group if it may end; later launchers then start another daemon.
    async fn close(&self) -> Result<bool, DaemonError> {
        self.tasks.parts.publisher.flush(FLUSH_MAX).await;
        self.tasks.parts.broker.metrics().write_now().await;
        self.tasks.parts.broker.spans().flush(FLUSH_MAX).await;
        let (group, state, tasks) =
            (self.group.clone(), self.state.clone(), Arc::clone(&self.tasks));
        let closing = move || {
            let _lock = group_lock::lock(&group)?;
            if start_under_way(&group) || !tasks.close_if_empty() {
                return Ok(false);
            }
            ended_groups::remove_group(&state, &group);
            Ok(true)
        };
        let closed = tokio::task::spawn_blocking(closing).await;
        closed.map_err(|error| system("closing the group")(error.into()))?
    }
}

/// Where images come from, and where events go.
fn outside(
    arguments: &ShimArguments,
    sandbox: SandboxKind,
    config: &NodeConfig,
) -> (Images, Publisher) {
    let namespace = &arguments.namespace;
    match sandbox {
        SandboxKind::Container => {
            let address = PathBuf::from(&arguments.address);
            let store = ContentStore { address, namespace: namespace.clone() };
            (Images::Containerd(store), Publisher::start(&arguments.events_address, namespace))
        }
        SandboxKind::Process => {
            let folder = FolderStore::below(&config.state_dir);
            (Images::Folder(folder), Publisher::without_reader(namespace))
        }
    }
}

/// True after a start whose `Create` has not come yet. When containerd gives up a start, it removes the bundle that
/// the mark names.
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
