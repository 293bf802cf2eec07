//! Who calls: a container, a function of a workflow file that need not run, or a process of this host.

use std::collections::BTreeMap;
use std::path::Path;

use cwasi_config::NodeConfig;
use cwasi_config::annotations::FunctionSpec;
use cwasi_content::ContentStore;
use cwasi_coordinator::embedding::{self, Embedding, ModuleToEmbed, NodeSettings};
use cwasi_coordinator::trust::Deployment;
use cwasi_coordinator::{ImageStore, module};
use cwasi_host::caller::CallerIdentity;
use cwasi_host::group::group_id;
use cwasi_wire::ids::Identity;
use serde::Serialize;

use super::planned::PlannedStore;
use crate::arguments::Global;
use crate::commands::activation::Activation;
use crate::containerd::containers::Container;
use crate::deployment::{Node, container_id, image_of};
use crate::failure::{Exit, Failure};
use cwasi_workflow::{Function, Role, Workflow};

/// What a shim knows of a caller.
pub(in crate::commands) struct Caller {
    pub(super) identity: Identity,
    /// Its container; empty for a process of this host.
    pub(super) container: String,
    /// Its annotations; none for a process of this host.
    pub(super) spec: FunctionSpec,
    /// Its group; empty without one.
    pub(super) group: String,
    /// What runs it besides calls.
    pub(super) activation: Activation,
    store: PlannedStore,
    /// Name of its image, and its module's path in it.
    module: Option<(String, Option<String>)>,
}

/// What is loaded of an embedded callee.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EmbeddedCode {
    /// Its image, and the digest by which that was trusted and read.
    pub(super) image: String,
    pub(super) image_digest: String,
    /// SHA-256 of the module in it.
    pub(super) module_digest: String,
    /// The reason to trust it.
    pub(super) trust: String,
}

/// What is known of the callee inside the caller's VM.
pub(super) enum Inside {
    No,
    /// Embedded, with what is loaded.
    Loaded(EmbeddedCode),
    Untrusted(String),
}

impl Caller {
    /// A process of this host, such as the gateway.
    pub(super) fn host(name: &str, pod_namespace: &str, global: &Global) -> Result<Self, Failure> {
        let CallerIdentity { namespace, .. } = CallerIdentity::in_namespace(&global.namespace);
        let (pod_namespace, function) = (pod_namespace.to_owned(), name.to_owned());
        Ok(Self {
            identity: Identity { namespace, pod_namespace, function },
            container: String::new(),
            spec: FunctionSpec::parse([])?,
            group: String::new(),
            activation: Activation::default(),
            store: PlannedStore::new(store(global)),
            module: None,
        })
    }

    pub(super) fn container(container: &Container, global: &Global) -> Result<Self, Failure> {
        let Container { id, image, annotations, .. } = container;
        let pairs = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let spec = FunctionSpec::parse(pairs)?;
        let path = container.module_path().map(str::to_owned);
        let has_group = !(spec.workflow.is_empty() && spec.pod.is_empty());
        let group = group_id(&global.namespace, id, annotations);
        Ok(Self {
            identity: identity(global, &spec, container.function()),
            container: id.clone(),
            activation: Activation::of_triggers(&spec.triggers),
            spec,
            group: if has_group { group } else { String::new() },
            store: PlannedStore::new(store(global)),
            module: Some((image.clone(), path)),
        })
    }

    /// A function of the workflow in `file`, as if the file were deployed.
    pub(super) fn of_file(
        (file, workflow): (&Path, &Workflow),
        name: &str,
        global: &Global,
    ) -> Result<Self, Failure> {
        let function = workflow.function(name).filter(|it| it.role != Role::Library);
        let Some(function) = function else {
            let text = format!("{} has no function {name} that runs", file.display());
            return Err(Failure::text(Exit::Missing, text));
        };
        Self::of_workflow(workflow, function, global)
    }

    /// A function of a workflow, as if the workflow were deployed.
    pub(in crate::commands) fn of_workflow(
        workflow: &Workflow,
        function: &Function,
        global: &Global,
    ) -> Result<Self, Failure> {
        let mut store = PlannedStore::new(store(global));
        let mut images = BTreeMap::new();
        for function in &workflow.functions {
            let image = image_of(workflow, function)?;
            images.insert(function.name.as_str(), image.name.clone());
            store.add_image(&function.name, image)?;
        }
        for function in workflow.functions.iter().filter(|it| it.role == Role::Secondary) {
            store.add_deployment(deployment(workflow, function, &images)?);
        }
        let name = function.name.as_str();
        let annotations = annotations(workflow, function, &images);
        let spec = parsed(&annotations)?;
        let container = container_id(&workflow.name, name, 1);
        let group = group_id(&global.namespace, &container, &annotations.into_iter().collect());
        Ok(Self {
            identity: identity(global, &spec, name),
            container,
            spec,
            group,
            activation: Activation::of_function(function)?,
            store,
            module: Some((images[name].clone(), None)),
        })
    }

    /// What the coordinator finds to embed when it starts the caller.
    pub(in crate::commands) async fn embedding(&self, node: &Node) -> Result<Embedding, Failure> {
        let Some((image, path)) = &self.module else { return Ok(Embedding::default()) };
        let missing = |problem| Failure::text(Exit::Missing, problem);
        let image = self.store.image(image).await.map_err(missing)?;
        let bytes = self.store.module(&image, path.as_deref()).await.map_err(missing)?;
        let module = module::check(&bytes, &image.name)?;
        let NodeConfig { trust_groups, engine, .. } = &node.config;
        let settings = NodeSettings { spanning: trust_groups, engine: *engine };
        let (spec, identity, container) = (&self.spec, &self.identity, &self.container);
        Ok(embedding::discover(&self.store, &module, spec, identity, container, settings).await?)
    }

    /// What the coordinator decides about embedding `callee` when it starts the caller.
    pub(super) async fn inside(&self, node: &Node, callee: &Identity) -> Result<Inside, Failure> {
        let is_named = self.spec.embed.iter().any(|embed| embed.module == callee.function);
        if !is_named || !self.identity.same_scope(callee) {
            return Ok(Inside::No);
        }
        let found = self.embedding(node).await?;
        if let Some(reason) = found.refused.get(&callee.function) {
            return Ok(Inside::Untrusted(reason.clone()));
        }
        let mut modules = found.modules.into_iter();
        let loaded = modules.find(|it| it.name == callee.function && it.is_reactor());
        Ok(loaded.map_or(Inside::No, |ModuleToEmbed { module, grant, .. }| {
            Inside::Loaded(EmbeddedCode {
                image: grant.image.name,
                image_digest: grant.image.digest,
                module_digest: format!("sha256:{}", module.digest),
                trust: grant.reason,
            })
        }))
    }
}

fn store(global: &Global) -> ContentStore {
    ContentStore { address: global.address.clone(), namespace: global.namespace.clone() }
}

fn identity(global: &Global, spec: &FunctionSpec, function: &str) -> Identity {
    Identity {
        namespace: global.namespace.clone(),
        pod_namespace: spec.pod_namespace.clone(),
        function: function.to_owned(),
    }
}

fn annotations(
    workflow: &Workflow,
    function: &Function,
    images: &BTreeMap<&str, String>,
) -> BTreeMap<String, String> {
    function.all_annotations(&workflow.name, |name| images[name].clone())
}

fn parsed(annotations: &BTreeMap<String, String>) -> Result<FunctionSpec, Failure> {
    let pairs = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    Ok(FunctionSpec::parse(pairs)?)
}

/// A secondary of the file, as its container will be.
fn deployment(
    workflow: &Workflow,
    function: &Function,
    images: &BTreeMap<&str, String>,
) -> Result<Deployment, Failure> {
    let spec = parsed(&annotations(workflow, function, images))?;
    Ok(Deployment {
        container: container_id(&workflow.name, &function.name, 1),
        image: images[function.name.as_str()].clone(),
        path: String::new(),
        pod_namespace: spec.pod_namespace,
        function: function.name.clone(),
        workflow: spec.workflow,
        trust: spec.trust,
        engine: spec.engine,
    })
}
