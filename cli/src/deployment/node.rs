//! One containerd of a workflow, with the configuration of its node.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cwasi_config::NodeConfig;
use cwasi_host::ended_groups;
use cwasi_host::state::StateDir;
use oci_spec::runtime::Spec;
use sha2::{Digest as _, Sha256};

use super::platform::{FunctionImage, Known, PlannedFunction, Platform, ServiceContainer};
use super::service_containers::{self, PlannedService, SHARED, labels, shared_network};
use super::service_lock::ServiceLock;
use super::services::remove_unused;
use super::{health, mounts};
use crate::arguments::Global;
use crate::containerd::Containerd;
use crate::containerd::containers::{Container, NewContainer};
use crate::containerd::images::Stored;
use crate::containerd::oci::{self, FunctionSpec, Network};
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use crate::image::{Image, ImageKind};
use cwasi_workflow::services::Service;
use cwasi_workflow::{Function, NodeSpec};

/// Longest wait for a start that was interrupted in containerd.
const LATE_MAX: Duration = Duration::from_secs(10);
/// A start that has left no trace for this time has ended.
const LATE_QUIET: Duration = Duration::from_millis(300);
const LATE_LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct Node {
    pub containerd: Containerd,
    pub config: NodeConfig,
}

impl Node {
    /// The node of the command line.
    ///
    /// # Errors
    /// When containerd does not answer, or the node's configuration is wrong.
    pub async fn connect(global: &Global) -> Result<Self, Failure> {
        Self::open(global, &global.address, None).await
    }

    /// A node of a workflow file.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn of(global: &Global, spec: &NodeSpec) -> Result<Self, Failure> {
        Self::open(global, &spec.address, spec.config.as_deref()).await
    }

    async fn open(global: &Global, address: &Path, config: Option<&Path>) -> Result<Self, Failure> {
        let config = NodeConfig::load(None, config)?;
        let containerd =
            Containerd::connect(address, &global.namespace, &global.snapshotter).await?;
        Ok(Self { containerd, config })
    }

    fn missing_image(&self, owner: &str, image: &str) -> Failure {
        let namespace = self.containerd.namespace();
        let text = format!(
            "{owner}: image {image} is not in containerd's namespace {namespace}; ctr --namespace {namespace} images \
             pull {image}, or import it"
        );
        Failure::text(Exit::Missing, text)
    }

    /// The network of a workflow's services, for the function in the container `id`.
    ///
    /// # Errors
    /// When none of the services runs, or containerd refuses.
    pub async fn services_network(&self, workflow: &str, id: &str) -> Result<PathBuf, Failure> {
        shared_network(&self.containerd, workflow, id).await?.ok_or_else(|| {
            let text = format!(
                "{id}: no service of workflow {workflow} runs any more: `cwasi logs --workflow {workflow}` has their last \
                 words, and `cwasi deploy` starts them again"
            );
            Failure::text(Exit::Failed, text)
        })
    }

    /// Removes the services of a workflow that no container uses, unless a command that runs uses some: that one
    /// removes them at its end. Returns their ids.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn remove_unused_services(&self, workflow: &str) -> Result<Vec<String>, Failure> {
        if self.services(workflow).await?.is_empty() {
            return Ok(Vec::new());
        }
        let lock = ServiceLock::open(self.state_dir(), self.namespace(), workflow)?;
        remove_unused(self, workflow, &lock, &[]).await
    }

    /// Removes the storage of a workflow's services, or of one of them. Returns its folder; `None` if there is none.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove_storage(
        &self,
        workflow: &str,
        service: Option<&str>,
    ) -> Result<Option<PathBuf>, Failure> {
        let namespace = self.containerd.namespace();
        service_containers::remove_storage(&self.config, namespace, workflow, service)
    }
}

/// A container that is to be made.
#[derive(Debug)]
pub struct ContainerPlan {
    image: String,
    parent: String,
    spec: Spec,
    hash: String,
    labels: HashMap<String, String>,
}

impl Platform for Node {
    type Plan = ContainerPlan;

    async fn provide(&self, function: &str, image: &FunctionImage) -> Result<(), Failure> {
        if self.containerd.has_image(&image.name).await? {
            return Ok(());
        }
        let Some(module) = &image.module else {
            return Err(self.missing_image(&format!("function {function}"), &image.name));
        };
        let built = Image::build(&image.name, ImageKind::Plain, function, module)?;
        Ok(self.containerd.write_image(&built).await?)
    }

    async fn plan(&self, planned: PlannedFunction<'_>) -> Result<ContainerPlan, Failure> {
        let PlannedFunction { workflow, function, image, annotations, id, shares_network } =
            planned;
        let image = self.containerd.image(&image.name).await?;
        let parent = self.containerd.unpack(&image).await?;
        let Some(command) = image.command().into_iter().next() else {
            let text =
                format!("image {} names no module to start: it has no entrypoint", image.name);
            return Err(Failure::text(Exit::Data, text));
        };
        mounts::check(function)?;
        let shared =
            if shares_network { Some(self.services_network(workflow, id).await?) } else { None };
        let network = match &shared {
            Some(path) => Network::At(path),
            None if function.host_network => Network::Host,
            None => Network::Own,
        };
        let spec = oci::spec(&FunctionSpec {
            cgroup: Some(&format!("/{}/{id}", self.containerd.namespace())),
            command,
            image_env: image.env(),
            working_dir: function.working_dir.clone().unwrap_or_else(|| image.working_dir()),
            args: &function.args,
            env: &function.env,
            network,
            mounts: &function.mounts,
            annotations,
        })?;
        let hash = hash(&image, function, annotations, shares_network);
        let labels = labels([
            ("workflow", workflow),
            ("function", &function.name),
            ("spec", &hash),
            ("uses", &function.uses.join(",")),
            ("network", if shares_network { SHARED } else { "" }),
        ]);
        Ok(ContainerPlan { image: image.name, parent, spec, hash, labels })
    }

    async fn provide_service(&self, service: &Service) -> Result<(), Failure> {
        if self.containerd.has_image(&service.image).await? {
            return Ok(());
        }
        Err(self.missing_image(&format!("service {}", service.name), &service.image))
    }

    async fn plan_service(
        &self,
        workflow: &str,
        service: &Service,
        id: &str,
    ) -> Result<ContainerPlan, Failure> {
        let what = (workflow, service, id);
        let planned = service_containers::plan(&self.containerd, &self.config, what).await?;
        let parent = self.containerd.unpack(&planned.image).await?;
        let PlannedService { image, spec, hash, labels } = planned;
        Ok(ContainerPlan { image: image.name, parent, spec, hash, labels })
    }

    async fn wait_until_ready(&self, id: &str, service: &Service) -> Result<(), Failure> {
        health::wait(&self.containerd, id, service).await
    }

    async fn services(&self, workflow: &str) -> Result<Vec<ServiceContainer>, Failure> {
        Ok(service_containers::of_workflow(&self.containerd.containers().await?, workflow))
    }

    async fn known(
        &self,
        workflow: &str,
        id: &str,
        plan: &ContainerPlan,
    ) -> Result<Known, Failure> {
        let known = self.containerd.containers().await?;
        let Some(known) = known.iter().find(|container| container.id == id) else {
            return Ok(Known::Idle);
        };
        check_owner(workflow, known)?;
        let alive = self.containerd.task(id).await?.is_some_and(|task| task.is_alive());
        let as_planned = known.label("spec") == plan.hash;
        Ok(if alive { Known::Runs { as_planned } } else { Known::Idle })
    }

    async fn create(&self, id: &str, plan: &ContainerPlan, stdio: &Stdio) -> Result<(), Failure> {
        let rootfs = self
            .containerd
            .create_container(NewContainer {
                id,
                image: &plan.image,
                parent: &plan.parent,
                spec: &plan.spec,
                labels: plan.labels.clone(),
            })
            .await?;
        Ok(self.containerd.create_task(id, rootfs, stdio).await?)
    }

    async fn start(&self, id: &str) -> Result<(), Failure> {
        Ok(self.containerd.start_task(id).await?)
    }

    async fn settled(&self) {
        self.containerd.settled().await;
    }

    /// containerd kills the launcher of such a start at any step, without an event.
    async fn end_late_starts(&self, group: &str) {
        let state = StateDir::new(self.state_dir());
        let group = state.group(group);
        let (until, mut seen) = (Instant::now() + LATE_MAX, Instant::now());
        while Instant::now() < until && seen.elapsed() < LATE_QUIET {
            if group.path().exists() {
                // A killed launcher's, which a daemon of the node would remove at its start.
                ended_groups::sweep(&state);
                seen = Instant::now();
            }
            tokio::time::sleep(LATE_LOOK).await;
        }
    }

    async fn wait(&self, id: &str) -> Result<u32, Failure> {
        Ok(self.containerd.wait_task(id).await?)
    }

    async fn stop(&self, id: &str) -> Result<(), Failure> {
        Ok(self.containerd.stop_task(id).await?)
    }

    async fn remove(&self, id: &str) -> Result<(), Failure> {
        self.containerd.remove(id).await?;
        self.forget_log(id);
        Ok(())
    }

    async fn deployed(&self, workflow: &str) -> Result<Vec<String>, Failure> {
        let containers = self.containerd.containers().await?;
        let own = containers
            .into_iter()
            .filter(|it| it.label("workflow") == workflow && it.is_secondary());
        Ok(own.map(|container| container.id).collect())
    }

    fn config(&self) -> &NodeConfig {
        &self.config
    }

    fn namespace(&self) -> &str {
        self.containerd.namespace()
    }
}

/// A container that another client made is not replaced.
fn check_owner(workflow: &str, known: &Container) -> Result<(), Failure> {
    if known.label("workflow") == workflow {
        return Ok(());
    }
    let id = &known.id;
    Err(Failure::text(
        Exit::Failed,
        format!(
            "container {id} exists, and is none of workflow {workflow}: remove it, or rename the workflow"
        ),
    ))
}

/// Changes when the container would be another one. Not of the configuration's text, whose maps have no order.
fn hash(
    image: &Stored,
    function: &Function,
    annotations: &BTreeMap<String, String>,
    shares_network: bool,
) -> String {
    let Function { args, env, mounts, host_network, working_dir, .. } = function;
    let mut text = format!(
        "{} {args:?} {env:?} {mounts:?} {host_network} {working_dir:?} {annotations:?}",
        image.digest
    );
    // Containers that use no service keep the hash that they had before there were services.
    if !function.uses.is_empty() {
        text += &format!(" {:?} {shares_network}", function.uses);
    }
    hex::encode(&Sha256::digest(text)[..8])
}
