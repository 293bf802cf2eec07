//! The actions of an executor: sandboxes of this user, and calls of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use cwasi_coordinator::delivered::Delivery;
use cwasi_host::caller::{CallerIdentity, HostCall, HostCaller};
use cwasi_host::http::openwhisk::messages::{Activation, time_left};
use cwasi_modes::{CallError, Payload};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe::OpenOptions;
use tokio::sync::{Mutex, OwnedMutexGuard, RwLock, watch};
use tokio::time::Instant;

use super::error::ActionError;
use super::folders::AllowedFolders;
use super::messages::Capabilities;
use super::own_addresses;
use crate::containerd::tasks::Stdio;
use crate::deployment::platform::Platform as _;
use crate::deployment::{LocalAction, LocalNode};
use crate::failure::Failure;

/// Namespace of all actions.
const NAMESPACE: &str = "openwhisk";
/// Every destination, for `cwasi.network`, but for the executor itself.
const EVERYWHERE: &str = "0.0.0.0/0, ::/0";

pub(super) struct Actions {
    /// `None` at the end. Nothing that uses it outlives `stopping`.
    live: RwLock<Option<Live>>,
    stopping: watch::Sender<bool>,
    folders: AllowedFolders,
    /// Whether actions may ask for sockets.
    has_network: bool,
    /// Where the executor listens.
    listener: SocketAddr,
    /// Path of the fifo with the output of all actions.
    output: String,
    started_ms: u64,
    running: RwLock<HashSet<String>>,
    /// For each id whose action comes or goes: those of other ids, and calls, do not wait for it.
    changing: Mutex<HashMap<String, Weak<Mutex<()>>>>,
}

/// What the actions need while the executor serves.
struct Live {
    /// Writes its counts into the node's folder when it is dropped, so it goes first.
    caller: HostCaller,
    node: LocalNode,
}

impl Actions {
    /// Starts the daemon of this user's sandboxes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) async fn start(
        folders: AllowedFolders,
        has_network: bool,
        listener: SocketAddr,
    ) -> Result<Self, Failure> {
        let node = LocalNode::bare(NAMESPACE, NAMESPACE).await?;
        let identity = CallerIdentity::in_namespace(NAMESPACE);
        let caller = HostCaller::start(node.config(), &identity)
            .map_err(|error| Failure::from(anyhow::Error::from(error)))?;
        let output = show_output(&node.config().state_dir)?;
        let (running, changing) = (RwLock::default(), Mutex::default());
        let (live, stopping) = (Some(Live { caller, node }).into(), watch::Sender::new(false));
        let started_ms = now_ms();
        Ok(Self {
            live,
            stopping,
            folders,
            has_network,
            listener,
            output,
            started_ms,
            running,
            changing,
        })
    }

    /// Does `work` with what the actions need, unless the executor ends.
    async fn with_live<T>(
        &self,
        work: impl AsyncFnOnce(&Live) -> Result<T, ActionError>,
    ) -> Result<T, ActionError> {
        let mut stopping = self.stopping.subscribe();
        let live = self.live.read().await;
        let live = live.as_ref().ok_or(ActionError::Ends)?;
        tokio::select! {
            done = work(live) => done,
            _ = stopping.wait_for(|stopping| *stopping) => Err(ActionError::Ends),
        }
    }

    /// The lock of an id.
    async fn changing(&self, id: &str) -> OwnedMutexGuard<()> {
        let mut locks = self.changing.lock().await;
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = locks.get(id).and_then(Weak::upgrade).unwrap_or_default();
        locks.insert(id.to_owned(), Arc::downgrade(&lock));
        drop(locks);
        lock.lock_owned().await
    }

    /// Starts an action, in the place of one with the same id.
    ///
    /// # Errors
    /// When the id is no name, it asks for what is not allowed, or its code does not start.
    pub(super) async fn init(
        &self,
        id: &str,
        delivery: Delivery,
        asked: &Capabilities,
    ) -> Result<(), ActionError> {
        cwasi_config::function_name(id)
            .map_err(|problem| ActionError::Name(format!("the id `{id}` {problem}")))?;
        let module = delivery
            .module
            .ok_or_else(|| ActionError::Failed("Missing main/no code to execute.".to_owned()))?;
        let annotations = self.annotations(asked)?;
        let folder = asked.dir.as_deref().map(|dir| self.folders.find(dir)).transpose()?;
        let env: Vec<(String, String)> = delivery
            .env
            .iter()
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let action = LocalAction {
            id,
            module: &module,
            archive: delivery.archive.as_deref(),
            export: delivery.export.as_deref(),
            env: &env,
            folder: folder.as_ref().map(|folder| (&folder.mount, folder.opened.identity())),
            annotations: &annotations,
        };
        let (stdout, stderr) = (self.output.clone(), self.output.clone());
        let stdio = Stdio { stdin: String::new(), stdout, stderr };
        let _changing = self.changing(id).await;
        self.with_live(async |live| {
            self.remove(live, id).await?;
            if let Err(failure) = live.node.start_action(&action, &stdio).await {
                // What is left of it is of no use.
                drop(live.node.remove_action(id).await);
                return Err(ActionError::Failed(failure.to_string()));
            }
            self.running.write().await.insert(id.to_owned());
            Ok(())
        })
        .await
    }

    /// Runs an action.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn run(
        &self,
        id: &str,
        activation: Activation,
    ) -> Result<Result<Vec<u8>, CallError>, ActionError> {
        if !self.running.read().await.contains(id) {
            return Err(ActionError::Unknown(id.to_owned()));
        }
        let Activation { value, context, deadline_ms } = activation;
        let Ok(left) = time_left(deadline_ms, self.started_ms, now_ms()) else {
            return Ok(Err(CallError::Timeout { target: id.to_owned() }));
        };
        let call = HostCall::new(id, Payload::Inline(value));
        let call = HostCall { deadline: Instant::now() + left, metadata: context, ..call };
        let unread = |error: cwasi_sys::segment::SegmentError| CallError::Internal {
            message: error.to_string(),
        };
        let ended = self.with_live(async |live| Ok(live.caller.call(call).await)).await?;
        Ok(ended.and_then(|answer| answer.payload.into_vec().map_err(unread)))
    }

    /// Ends an action.
    ///
    /// # Errors
    /// When there is none, or it survives.
    pub(super) async fn destroy(&self, id: &str) -> Result<(), ActionError> {
        let _changing = self.changing(id).await;
        let removed = self.with_live(async |live| self.remove(live, id).await).await?;
        if removed { Ok(()) } else { Err(ActionError::Unknown(id.to_owned())) }
    }

    /// Ends all actions, and whatever is done with them, and removes their folder.
    pub(super) async fn end(&self) {
        self.stopping.send_replace(true);
        let Some(live) = self.live.write().await.take() else { return };
        let ids: Vec<String> = self.running.read().await.iter().cloned().collect();
        for id in ids {
            if let Err(error) = self.remove(&live, &id).await {
                crate::output::note(format_args!("cwasi: action {id}: {error}"));
            }
        }
        let Live { caller, node } = live;
        drop(caller);
        node.end().await;
    }

    /// Ends an action, if there is one of this id.
    async fn remove(&self, live: &Live, id: &str) -> Result<bool, ActionError> {
        if !self.running.write().await.remove(id) {
            return Ok(false);
        }
        let removed = live.node.remove_action(id).await;
        removed.map(|()| true).map_err(|failure| ActionError::Failed(failure.to_string()))
    }

    fn annotations(&self, asked: &Capabilities) -> Result<BTreeMap<String, String>, ActionError> {
        let mut annotations = BTreeMap::from([("cwasi.role".to_owned(), "secondary".to_owned())]);
        if asked.net_access {
            if !self.has_network {
                return Err(ActionError::Denied("net_access".to_owned()));
            }
            let denied = own_addresses::denials(self.listener)
                .map_err(|error| ActionError::Failed(format!("the host's addresses: {error}")))?;
            let network = [EVERYWHERE.to_owned()].into_iter().chain(denied).collect::<Vec<_>>();
            annotations.insert("cwasi.network".to_owned(), network.join(", "));
        }
        Ok(annotations)
    }
}

/// A fifo in a folder, from which stderr gets what is written; its path.
fn show_output(folder: &Path) -> io::Result<String> {
    let path = folder.join("output");
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
    // Without an end: it has a writer of its own.
    let mut output = OpenOptions::new().read_write(true).open_receiver(&path)?;
    tokio::spawn(async move {
        let _closed = tokio::io::copy(&mut output, &mut tokio::io::stderr()).await;
        // Without a reader of stderr, the actions go on.
        let _endless = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    });
    Ok(path.display().to_string())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
