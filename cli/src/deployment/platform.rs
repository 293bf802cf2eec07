//! What a deployment needs of the place where functions run: a containerd ([`Node`](super::Node)), or this user's
//! processes ([`LocalNode`](super::LocalNode)).

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cwasi_config::NodeConfig;
use cwasi_host::state::{StateDir, create_private_dir, write_file};
use cwasi_sys::owned_path;

use super::log_file;
use super::run_folder::RunFolder;
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use cwasi_workflow::Function;
use cwasi_workflow::services::Service;

/// Folder of the state directory with those of runs.
pub const RUNS: &str = "runs";
/// Beginning of the name of a run's folder.
pub const RUN: &str = "run-";
/// Most bytes of a log that are quoted in an error.
const QUOTED_MAX: usize = 2_000;

/// A function's image, with its module if that is a file of this machine.
#[derive(Debug)]
pub struct FunctionImage {
    pub name: String,
    /// The module's bytes.
    pub module: Option<Vec<u8>>,
}

/// A container that is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFunction<'a> {
    pub workflow: &'a str,
    pub function: &'a Function,
    pub image: &'a FunctionImage,
    pub annotations: &'a BTreeMap<String, String>,
    pub id: &'a str,
    /// True for the network of the workflow's services.
    pub shares_network: bool,
}

/// A service that has a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceContainer {
    pub id: String,
    /// A container of its workflow names it in its label `uses`.
    pub is_used: bool,
}

/// What is there under a container's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// No container, or one of the same workflow that does not run.
    Idle,
    /// A container of the same workflow runs.
    Runs {
        /// True if it is as the plan says.
        as_planned: bool,
    },
}

fn logs(config: &NodeConfig, namespace: &str) -> PathBuf {
    config.logs_dir().join(namespace)
}

/// File of a container's output.
#[must_use]
pub fn log_file(config: &NodeConfig, namespace: &str, id: &str) -> PathBuf {
    logs(config, namespace).join(format!("{id}.log"))
}

/// Where functions run. Containers are named by their ids.
pub trait Platform {
    /// A container that can be created.
    type Plan;

    /// Has the image of a function there.
    fn provide(
        &self,
        function: &str,
        image: &FunctionImage,
    ) -> impl Future<Output = Result<(), Failure>>;

    fn plan(
        &self,
        planned: PlannedFunction<'_>,
    ) -> impl Future<Output = Result<Self::Plan, Failure>>;

    /// Has the image of a service there.
    fn provide_service(&self, service: &Service) -> impl Future<Output = Result<(), Failure>>;

    fn plan_service(
        &self,
        workflow: &str,
        service: &Service,
        id: &str,
    ) -> impl Future<Output = Result<Self::Plan, Failure>>;

    /// Waits until a service that was started is ready.
    fn wait_until_ready(
        &self,
        id: &str,
        service: &Service,
    ) -> impl Future<Output = Result<(), Failure>>;

    /// The services of a workflow that have a container there.
    fn services(
        &self,
        workflow: &str,
    ) -> impl Future<Output = Result<Vec<ServiceContainer>, Failure>>;

    /// Looks for a container. One of another client is an error.
    fn known(
        &self,
        workflow: &str,
        id: &str,
        plan: &Self::Plan,
    ) -> impl Future<Output = Result<Known, Failure>>;

    /// Creates a container; compiles its module, if that was not done before.
    fn create(
        &self,
        id: &str,
        plan: &Self::Plan,
        stdio: &Stdio,
    ) -> impl Future<Output = Result<(), Failure>>;

    fn start(&self, id: &str) -> impl Future<Output = Result<(), Failure>>;

    /// Waits for operations that go on although a signal interrupted the command.
    fn settled(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Waits for the end of starts in this shim group that were interrupted and go on, and removes what they leave.
    fn end_late_starts(&self, _group: &str) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Waits for its end; its exit code.
    fn wait(&self, id: &str) -> impl Future<Output = Result<u32, Failure>>;

    /// Ends it; it stays, ended.
    fn stop(&self, id: &str) -> impl Future<Output = Result<(), Failure>>;

    /// Removes it, whatever its state, with its log.
    fn remove(&self, id: &str) -> impl Future<Output = Result<(), Failure>>;

    /// The secondaries of a workflow that have a container there, by id.
    fn deployed(&self, workflow: &str) -> impl Future<Output = Result<Vec<String>, Failure>>;

    /// The runtime's configuration there.
    fn config(&self) -> &NodeConfig;

    /// The runtime's state directory.
    fn state_dir(&self) -> &Path {
        &self.config().state_dir
    }

    /// The namespace of the containers.
    fn namespace(&self) -> &str;

    /// File of a container's output.
    fn log(&self, id: &str) -> PathBuf {
        log_file(self.config(), self.namespace(), id)
    }

    /// Makes an empty log. Returns the streams that lead into it.
    ///
    /// # Errors
    /// When the file system refuses.
    fn create_log(&self, id: &str) -> Result<Stdio, Failure> {
        let log = self.log(id);
        let config = self.config();
        owned_path::check(&logs(config, self.namespace())).map_err(|error| {
            let text =
                format!("the log {}: {error}; name another folder in [logs] dir", log.display());
            Failure::text(Exit::Denied, text)
        })?;
        log_file::remove(&log);
        let made = || {
            StateDir::new(self.state_dir()).prepare()?;
            create_private_dir(&logs(config, self.namespace()))?;
            write_file(&log, b"")
        };
        made().with_context(|| format!("the log {} cannot be made", log.display()))?;
        let uri = config.logs.uri(&log);
        Ok(Stdio { stdin: String::new(), stdout: uri.clone(), stderr: uri })
    }

    /// Removes a container's log. A container of another client has none here; folders stay while there are others.
    fn forget_log(&self, id: &str) {
        log_file::remove(&self.log(id));
        let config = self.config();
        let removed = std::fs::remove_dir(logs(config, self.namespace()));
        if removed.is_ok() && config.logs.dir.is_none() {
            let _others = std::fs::remove_dir(config.logs_dir());
        }
    }

    /// Folder of the folders of runs.
    fn runs(&self) -> PathBuf {
        self.state_dir().join(RUNS)
    }

    /// Makes a folder for a run, and removes those of runs that were killed.
    ///
    /// # Errors
    /// When the file system refuses.
    fn run_folder(&self) -> std::io::Result<RunFolder> {
        let made = StateDir::new(self.state_dir())
            .prepare()
            .and_then(|()| create_private_dir(&self.runs()));
        made.map_err(std::io::Error::other)?;
        RunFolder::new(&self.runs(), RUN)
    }

    /// The end of a container's log, for an error; empty without one.
    fn log_tail(&self, id: &str) -> String {
        let text = std::fs::read(self.log(id)).unwrap_or_default();
        let text =
            String::from_utf8_lossy(&text[text.len().saturating_sub(QUOTED_MAX)..]).into_owned();
        match text.trim() {
            "" => String::new(),
            text => format!("\nthe end of its log:\n{text}"),
        }
    }
}
