//! Asks the coordinator what a bundle needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oci_spec::runtime::Spec;

use crate::compiler::Compiler;
use crate::reaper::Reaper;
use crate::zygotes::Zygotes;
use cwasi_config::NodeConfig;
use cwasi_content::Images;
use cwasi_coordinator::delivered::Delivery;
use cwasi_coordinator::fingerprint::fingerprint;
use cwasi_coordinator::triggers::TriggerPolicy;
use cwasi_coordinator::{AotCache, Coordinator, Plan, PlanError, PlanRequest, Progress};
use cwasi_sys::random;

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
    coordinator: Arc<Coordinator<Images, Compiler>>,
    namespace: String,
    group: String,
    receivers: PathBuf,
}

/// What a bundle needs, and where its receiver would listen.
#[derive(Debug)]
pub struct Provision {
    pub plan: Plan,
    /// Receiver socket, for secondaries.
    pub socket: PathBuf,
}

impl Provisioner {
    /// A coordinator for this node, namespace and group.
    #[must_use]
    pub fn new(
        node: &NodeConfig,
        images: Images,
        namespace: &str,
        group: &str,
        zygotes: &Arc<Zygotes>,
        reaper: &Reaper,
    ) -> Self {
        let compiler = Compiler::new(node, zygotes, reaper);
        let cache = AotCache::new(&node.cache_dir, fingerprint, &node.compile);
        Self {
            coordinator: Arc::new(Coordinator {
                cache,
                images,
                compiler,
                engine: node.engine,
                trust_groups: node.trust_groups.clone(),
                workers_max: node.workers_max,
                triggers: TriggerPolicy::of(node),
                http: node.http.clone(),
                sample: node.traces.sample,
            }),
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            receivers: node.state_dir.join("r"),
        }
    }

    /// Plans one container; slow when its module has to be compiled. Dropped, it ends the compiler. Blocks the thread: a
    /// module of many megabytes is read, checked and hashed.
    ///
    /// # Errors
    /// What the user has to change.
    pub async fn plan(
        &self,
        container: &str,
        spec: &Spec,
        rootfs: &Path,
        progress: &impl Progress,
    ) -> Result<Provision, ProvisionError> {
        let instance = hex::encode(&random::bytes16()[..8]);
        let socket = self.receivers.join(format!("{instance}.sock"));
        let request = self.request(container, (spec, rootfs), (&instance, &socket), None);
        let plan = self.coordinator.plan(&request, progress).await?;
        Ok(Provision { plan, socket })
    }

    /// Plans a container once more, with what has come since its start. Otherwise as [`Self::plan`].
    ///
    /// # Errors
    /// What the user has to change.
    pub async fn plan_delivery(
        &self,
        container: &str,
        bundle: (&Spec, &Path),
        instance: (&str, &Path),
        delivery: &Delivery,
        progress: &impl Progress,
    ) -> Result<Plan, ProvisionError> {
        let request = self.request(container, bundle, instance, Some(delivery));
        Ok(self.coordinator.plan(&request, progress).await?)
    }

    /// The specification with the root file system; `instance`: its id and the path of its receiver.
    fn request<'a>(
        &'a self,
        container: &'a str,
        (spec, rootfs): (&'a Spec, &'a Path),
        (instance, socket): (&'a str, &'a Path),
        delivery: Option<&'a Delivery>,
    ) -> PlanRequest<'a> {
        let (namespace, group) = (self.namespace.as_str(), self.group.as_str());
        PlanRequest { spec, rootfs, namespace, container, group, instance, socket, delivery }
    }
}
