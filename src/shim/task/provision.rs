//! Asks the coordinator what a bundle needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::config::NodeConfig;
use crate::coordinator::{AotCache, CompileChild, Coordinator, Plan, PlanError, PlanRequest};
use crate::shim::content::ContentStore;
use crate::shim::reaper::Reaper;
use crate::shim::spawn::spawn;
use crate::shim::zygote::Zygote;
use crate::sys::random;
use crate::vm::fingerprint::{COMPILER_OPTIONS, ENGINE_VERSION, cpu_features};

/// Longest message of the compiler that is shown, in bytes.
const MESSAGE_MAX: u64 = 16 * 1024;

/// The bundle cannot be provisioned.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The coordinator says why.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The coordinator with its stores.
#[derive(Clone, Debug)]
pub struct Provisioner {
    coordinator: Arc<Coordinator<ContentStore, Compiler>>,
    namespace: String,
    group: String,
    receivers: PathBuf,
}

/// What a bundle needs, and where its receiver would listen.
#[derive(Debug)]
pub struct Provision {
    /// The coordinator's plan.
    pub plan: Plan,
    /// Receiver socket, for secondaries.
    pub socket: PathBuf,
}

impl Provisioner {
    /// A coordinator for this node, namespace and group.
    #[must_use]
    pub fn new(
        node: &NodeConfig,
        containerd: &str,
        namespace: &str,
        group: &str,
        zygote: &Arc<Zygote>,
        reaper: &Reaper,
    ) -> Self {
        let images =
            ContentStore { address: PathBuf::from(containerd), namespace: namespace.to_owned() };
        let compiler = Compiler {
            zygote: Arc::clone(zygote),
            reaper: reaper.clone(),
            slots: Arc::new(Semaphore::new(
                std::thread::available_parallelism().map_or(1, usize::from),
            )),
        };
        let cache = AotCache::new(&node.cache_dir, &fingerprint());
        Self {
            coordinator: Arc::new(Coordinator {
                cache,
                images,
                compiler,
                trust_groups: node.trust_groups.clone(),
            }),
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            receivers: node.state_dir.join("r"),
        }
    }

    /// Plans one container; slow when its module has to be compiled. Blocks: a module of many megabytes is read, checked and
    /// hashed.
    ///
    /// # Errors
    /// What the user has to change.
    pub fn plan(
        &self,
        reactor: &Handle,
        container: &str,
        bundle: &Path,
        rootfs: &Path,
    ) -> Result<Provision, ProvisionError> {
        let instance = hex::encode(&random::bytes16()[..8]);
        let socket = self.receivers.join(format!("{instance}.sock"));
        let request = PlanRequest {
            bundle,
            rootfs,
            namespace: &self.namespace,
            container,
            group: &self.group,
            instance: &instance,
            socket: &socket,
        };
        let plan = reactor.block_on(self.coordinator.plan(&request))?;
        Ok(Provision { plan, socket })
    }
}

/// What native code depends on besides its module; a change of any of it is another key in the cache.
fn fingerprint() -> String {
    [ENGINE_VERSION, COMPILER_OPTIONS, &cpu_features()].join("\n")
}

/// Compiles in a process of its own: `cwasi-sandbox compile`.
#[derive(Clone, Debug)]
pub struct Compiler {
    zygote: Arc<Zygote>,
    reaper: Reaper,
    /// One compiler per processor: more would only take each other's memory.
    slots: Arc<Semaphore>,
}

impl CompileChild for Compiler {
    async fn compile(&self, wasm: &Path, out: &Path) -> Result<(), String> {
        use std::io::Read as _;
        use std::os::fd::AsFd as _;

        let slot = self.slots.acquire().await;
        let _slot = slot.map_err(|error| format!("no compiler slot: {error}"))?;
        let (reader, writer) = std::io::pipe().map_err(|error| format!("no pipe: {error}"))?;
        let null = std::fs::File::open("/dev/null").map_err(|error| format!("no null: {error}"))?;
        let ticket = self.reaper.ticket();
        let arguments = ["compile".as_ref(), wasm.as_os_str(), out.as_os_str()];
        let descriptors = [(null.as_fd(), 0), (writer.as_fd(), 1), (writer.as_fd(), 2)];
        let started = spawn(self.zygote.program(), &arguments, &descriptors);
        let pid = started.map_err(|error| error.to_string())?;
        let exit = ticket.claim(pid);
        drop((writer, ticket));
        let message = tokio::task::spawn_blocking(move || {
            let mut text = Vec::new();
            let mut limited = reader.take(MESSAGE_MAX);
            let read = limited.read_to_end(&mut text);
            // What is beyond the limit is read too, or the compiler would wait for ever.
            let drained = std::io::copy(&mut limited.into_inner(), &mut std::io::sink());
            let _ = (read, drained);
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        let message = message.await.unwrap_or_default();
        match exit.await {
            Ok(exit) if exit.status == 0 => Ok(()),
            Ok(exit) => Err(format!("the compiler ended with status {}: {message}", exit.status)),
            Err(_) => Err("the compiler's end was not seen".to_owned()),
        }
    }
}
