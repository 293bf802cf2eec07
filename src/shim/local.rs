//! A daemon without containerd, and its client: `cwasi run --local`. Runs in the command that starts the daemon.
//!
//! The command is what containerd is to other daemons: it writes bundles, and asks for tasks over the same Task API.
//!
//! Invariant: the daemon ends when this client is dropped, and when its process dies.

use std::path::Path;
use std::time::Duration;

use containerd_shim::api::{
    CreateTaskRequest, DeleteRequest, KillRequest, ShutdownRequest, StartRequest, WaitRequest,
};
use containerd_shim::protos::shim_async::{Client, TaskClient};
use containerd_shim::protos::ttrpc::{self, Code, context};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, timeout};

use super::arguments::ShimArguments;
use super::daemon::LOCAL_ACTION;
use super::launcher::{self, LaunchError, StartingDaemon};
use cwasi_config::NodeConfig;
use cwasi_host::kept_spans;
use cwasi_host::state::{GroupDir, StateDir, StateError};

/// Longest wait for a daemon that was asked to end.
const END_MAX: Duration = Duration::from_secs(10);
/// Interval at which it is polled for its end.
const END_PAUSE: Duration = Duration::from_millis(2);
/// Longest wait for a function that was asked to end.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a killed one.
const KILL_MAX: Duration = Duration::from_secs(30);

/// A failed operation of a local daemon.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// It does not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It does not do what it is asked for.
    #[error("{id} cannot be {done}: {}", text(answer))]
    Refused {
        /// The function's container id.
        id: String,
        /// What was to be done, as a participle.
        done: &'static str,
        /// Its answer. Not this error's source: who prints a chain would print the status as Rust does.
        answer: ttrpc::Error,
    },
    /// It cannot be reached.
    #[error("the daemon cannot be asked: {}", text(.0))]
    Connect(ttrpc::Error),
    /// A function survives `SIGKILL`.
    #[error("{id} did not end within {} s of SIGKILL", KILL_MAX.as_secs())]
    Endless {
        /// The function's container id.
        id: String,
    },
}

/// The daemon's own words; ttrpc adds the name of the code.
fn text(error: &ttrpc::Error) -> String {
    match error {
        ttrpc::Error::RpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

/// Streams of a function: fifos, or `file://` URIs; empty for none.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    /// Path of a fifo, empty for none.
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
}

pub struct LocalDaemon {
    pid: Pid,
    client: TaskClient,
    /// True after the daemon was reaped.
    has_ended: bool,
}

impl LocalDaemon {
    /// Starts the daemon of a group, below the configuration's state directory, and connects to it. `file` is that of
    /// the configuration, for errors.
    ///
    /// # Errors
    /// When it cannot be started; its words.
    pub async fn start(
        config: &NodeConfig,
        namespace: &str,
        group: &str,
        file: Option<&Path>,
    ) -> Result<Self, LocalError> {
        let group = StateDir::new(&config.state_dir).group(group);
        let arguments = ShimArguments {
            namespace: namespace.to_owned(),
            id: group.id().to_owned(),
            address: String::new(),
            events_address: String::new(),
            debug: false,
        };
        let StartingDaemon { pid, report } =
            launcher::spawn_daemon(&arguments, &group, (config, file), Some(LOCAL_ACTION))?;
        let mut started = Unconnected(Some(pid));
        launcher::wait_ready(report, &group)?;
        let client = connect(&group).await?;
        started.0 = None;
        Ok(Self { pid, client, has_ended: false })
    }

    /// Creates a function from its bundle; slow when its module has to be compiled.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn create(
        &self,
        id: &str,
        bundle: &Path,
        streams: &Streams,
    ) -> Result<(), LocalError> {
        let mut request = CreateTaskRequest::new();
        request.set_id(id.to_owned());
        request.set_bundle(bundle.display().to_string());
        request.set_stdin(streams.stdin.clone());
        request.set_stdout(streams.stdout.clone());
        request.set_stderr(streams.stderr.clone());
        let created = self.client.create(context::with_timeout(0), &request).await;
        created.map(drop).map_err(refused(id, "started"))
    }

    /// Starts it.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn start_task(&self, id: &str) -> Result<(), LocalError> {
        let mut request = StartRequest::new();
        request.set_id(id.to_owned());
        let started = self.client.start(context::with_timeout(0), &request).await;
        started.map(drop).map_err(refused(id, "started"))
    }

    /// Waits for its end; its exit code.
    ///
    /// # Errors
    /// When there is no such function.
    pub async fn wait(&self, id: &str) -> Result<u32, LocalError> {
        let mut request = WaitRequest::new();
        request.set_id(id.to_owned());
        let ended = self.client.wait(context::with_timeout(0), &request).await;
        ended.map(|response| response.exit_status()).map_err(refused(id, "waited for"))
    }

    /// Ends it, if it runs: asks it, and kills it when it does not end in time.
    ///
    /// # Errors
    /// When it survives.
    pub async fn stop(&self, id: &str) -> Result<(), LocalError> {
        for (signal, max) in [(libc::SIGTERM, STOP_MAX), (libc::SIGKILL, KILL_MAX)] {
            let mut request = KillRequest::new();
            request.set_id(id.to_owned());
            request.set_signal(signal.unsigned_abs());
            match self.client.kill(context::with_timeout(0), &request).await {
                Err(error) if is_missing(&error) => return Ok(()),
                answer => drop(answer.map_err(refused(id, "stopped"))?),
            }
            match timeout(max, self.wait(id)).await {
                Err(_elapsed) => {}
                Ok(Err(LocalError::Refused { answer, .. })) if is_missing(&answer) => return Ok(()),
                Ok(ended) => return ended.map(drop),
            }
        }
        Err(LocalError::Endless { id: id.to_owned() })
    }

    /// Removes it, whatever its state.
    ///
    /// # Errors
    /// When it survives.
    pub async fn remove(&self, id: &str) -> Result<(), LocalError> {
        self.stop(id).await?;
        let mut request = DeleteRequest::new();
        request.set_id(id.to_owned());
        match self.client.delete(context::with_timeout(0), &request).await {
            Err(error) if !is_missing(&error) => Err(refused(id, "removed")(error)),
            _ => Ok(()),
        }
    }

    /// Ends the daemon, which has no functions any more, and waits for it. It then has written the last calls.
    pub async fn end(mut self) {
        let asked = self.client.shutdown(context::with_timeout(0), &ShutdownRequest::new()).await;
        let deadline = Instant::now() + END_MAX;
        while asked.is_ok() && Instant::now() < deadline {
            if waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).is_ok_and(|it| it.pid().is_some()) {
                self.has_ended = true;
                return;
            }
            sleep(END_PAUSE).await;
        }
    }
}

impl Drop for LocalDaemon {
    fn drop(&mut self) {
        if !self.has_ended {
            launcher::kill(self.pid);
        }
    }
}

/// Copies the spans of an ended daemon, and of the command's own run, into another state directory.
///
/// # Errors
/// When a file cannot be read or written.
pub fn keep_spans(config: &NodeConfig, state: &Path) -> Result<(), StateError> {
    let [from, to] = [&config.state_dir, state].map(|root| StateDir::new(root).kept_spans());
    kept_spans::copy_kept(&from, &to)
}

/// A daemon without a client, which is killed.
struct Unconnected(Option<Pid>);

impl Drop for Unconnected {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            launcher::kill(pid);
        }
    }
}

async fn connect(group: &GroupDir) -> Result<TaskClient, LocalError> {
    let address = format!("unix://{}", group.socket().display());
    Client::connect(&address).await.map(TaskClient::new).map_err(LocalError::Connect)
}

fn refused(id: &str, done: &'static str) -> impl FnOnce(ttrpc::Error) -> LocalError {
    let id = id.to_owned();
    move |answer| LocalError::Refused { id, done, answer }
}

/// True when there is no such function, or it has ended.
fn is_missing(error: &ttrpc::Error) -> bool {
    matches!(error, ttrpc::Error::RpcStatus(status) if status.code() == Code::NOT_FOUND)
}
