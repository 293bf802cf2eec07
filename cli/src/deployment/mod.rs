//! A workflow on its nodes: writes images, starts what does not run, runs primaries, takes down what it started.
//!
//! - `node`: one containerd; `primary`: a function that runs to its end; [`hops`]: the calls between functions.
//! - [`display`]: what the user sees meanwhile.
//!
//! Invariant: a container is noted before it is made, so that an interrupted start is taken down, too.

pub mod display;
pub mod hops;
mod node;
mod primary;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use futures_util::future::try_join_all;
use oci_spec::runtime::Spec;
use sha2::{Digest as _, Sha256};

use self::display::{Display, Line};
use self::hops::Hop;
pub use self::node::Node;
use crate::arguments::Global;
use crate::containerd::containers::{Container, LABEL, NewContainer};
use crate::containerd::images::Stored;
use crate::containerd::oci;
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use crate::image::{Image, ImageKind, name_of};
use crate::workflow::{Embedded, Function, Role, Source, Workflow};

/// Longest id of a container in containerd.
const ID_MAX: usize = 76;

/// A workflow and its nodes.
#[derive(Debug)]
pub struct Deployment<'a> {
    workflow: &'a Workflow,
    /// By the name in the file; the command line's has none.
    nodes: BTreeMap<Option<&'a str>, Node>,
    /// The functions' images, with the module of those that are built here.
    images: HashMap<&'a str, FunctionImage>,
    display: Display,
    /// Containers that this deployment made, or is about to make: node and id.
    made: Mutex<Vec<(Option<&'a str>, String)>>,
}

#[derive(Debug)]
struct FunctionImage {
    name: String,
    module: Option<Vec<u8>>,
}

/// What became of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployed {
    /// It was made.
    Started,
    /// It ran already, as the file says.
    Unchanged,
}

impl<'a> Deployment<'a> {
    /// Connects to all nodes and reads all modules.
    ///
    /// # Errors
    /// When a node does not answer, or a module cannot be read.
    pub async fn new(workflow: &'a Workflow, global: &Global) -> Result<Self, Failure> {
        let mut nodes = BTreeMap::new();
        for function in &workflow.functions {
            let name = function.node.as_deref();
            if function.role != Role::Library && !nodes.contains_key(&name) {
                let node = match name.and_then(|name| workflow.nodes.get(name)) {
                    Some(spec) => Node::of(global, spec).await?,
                    None => Node::connect(global).await?,
                };
                nodes.insert(name, node);
            }
        }
        let mut images = HashMap::new();
        for function in &workflow.functions {
            images.insert(function.name.as_str(), image_of(workflow, function)?);
        }
        let made = Mutex::default();
        Ok(Self { workflow, nodes, images, display: Display::default(), made })
    }

    /// What the user sees.
    #[must_use]
    pub const fn display(&self) -> &Display {
        &self.display
    }

    fn node(&self, function: &'a Function) -> &Node {
        &self.nodes[&function.node.as_deref()]
    }

    fn containers_of(&self, role: Role) -> impl Iterator<Item = &'a Function> {
        self.workflow.functions.iter().filter(move |function| function.role == role)
    }

    /// Writes the images that are missing: each function's, and those that it embeds.
    ///
    /// # Errors
    /// When an image of the file is in no containerd, or containerd refuses.
    pub async fn write_images(&self) -> Result<(), Failure> {
        for function in &self.workflow.functions {
            if function.role == Role::Library {
                continue;
            }
            let embedded = function.embed.iter().filter_map(|(_, from)| match from {
                Embedded::Function(name) => Some(name.as_str()),
                Embedded::Image(_) => None,
            });
            for name in embedded.chain([function.name.as_str()]) {
                self.write_image(&self.node(function).clone(), name).await?;
            }
        }
        Ok(())
    }

    async fn write_image(&self, node: &Node, function: &str) -> Result<(), Failure> {
        let image = &self.images[function];
        if node.containerd.has_image(&image.name).await? {
            return Ok(());
        }
        let Some(module) = &image.module else {
            let namespace = node.containerd.namespace();
            let text = format!(
                "function {function}: image {name} is not in containerd's namespace {namespace}; ctr --namespace \
                 {namespace} images pull {name}, or import it",
                name = image.name
            );
            return Err(Failure::text(Exit::Missing, text));
        };
        let built = Image::build(&image.name, ImageKind::Plain, function, module)?;
        Ok(node.containerd.write_image(&built).await?)
    }

    /// Starts the secondaries that do not run as the file says, all at a time.
    ///
    /// # Errors
    /// The first one that does not start.
    pub async fn start_secondaries(&self) -> Result<Vec<(String, Deployed)>, Failure> {
        let mut starts = Vec::new();
        for function in self.containers_of(Role::Secondary) {
            for replica in 1..=function.replicas {
                starts.push(self.start_secondary(function, replica));
            }
        }
        try_join_all(starts).await
    }

    async fn start_secondary(
        &self,
        function: &'a Function,
        replica: u32,
    ) -> Result<(String, Deployed), Failure> {
        let node = self.node(function);
        let id = container_id(&self.workflow.name, &function.name, replica);
        let planned = self.plan(function, &id).await?;
        if self.runs_as_planned(node, &id, &planned).await? {
            return Ok((id, Deployed::Unchanged));
        }
        node.remove(&id).await?;
        let line = self.display.line(&id);
        let module = self.images[function.name.as_str()].module.as_ref().map(Vec::len);
        let started = self.start(function, &id, planned, &line, module).await;
        line.clear();
        if started.is_err() {
            return started
                .map(|()| (id.clone(), Deployed::Started))
                .map_err(|failure| failure.with(&node.log_tail(&id)));
        }
        if !self.display.is_live() {
            line.state("running");
        }
        Ok((id, Deployed::Started))
    }

    async fn start(
        &self,
        function: &'a Function,
        id: &str,
        planned: Planned,
        line: &Line,
        module: Option<usize>,
    ) -> Result<(), Failure> {
        let node = self.node(function);
        self.note(function, id);
        line.state("starting");
        let log = node.create_log(id).with_context(|| format!("the log of {id} cannot be made"))?;
        let log = format!("file://{}", log.display());
        let stdio = Stdio { stdin: String::new(), stdout: log.clone(), stderr: log };
        let rootfs = node.containerd.create_container(planned.container(id)).await?;
        let began = Instant::now();
        tokio::select! {
            created = node.containerd.create_task(id, rootfs, &stdio) => created?,
            never = line.compiling(began, module) => match never {},
        }
        Ok(node.containerd.start_task(id).await?)
    }

    fn note(&self, function: &'a Function, id: &str) {
        let node = function.node.as_deref();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((node, id.to_owned()));
    }

    async fn runs_as_planned(
        &self,
        node: &Node,
        id: &str,
        planned: &Planned,
    ) -> Result<bool, Failure> {
        let known = node.containerd.containers().await?;
        let Some(known) = known.iter().find(|container| container.id == id) else {
            return Ok(false);
        };
        self.check_owner(known)?;
        let alive = node.containerd.task(id).await?.is_some_and(|task| task.is_alive());
        Ok(alive && known.label("spec") == planned.hash)
    }

    /// A container that another client made is not replaced.
    fn check_owner(&self, container: &Container) -> Result<(), Failure> {
        if container.label("workflow") == self.workflow.name {
            return Ok(());
        }
        let id = &container.id;
        Err(Failure::text(
            Exit::Failed,
            format!(
                "container {id} exists, and is none of workflow {}: remove it, or rename the workflow",
                self.workflow.name
            ),
        ))
    }

    async fn plan(&self, function: &'a Function, id: &str) -> Result<Planned, Failure> {
        let node = self.node(function);
        let image = node.containerd.image(&self.images[function.name.as_str()].name).await?;
        let parent = node.containerd.unpack(&image).await?;
        if image.command().is_empty() {
            let text =
                format!("image {} names no module to start: it has no entrypoint", image.name);
            return Err(Failure::text(Exit::Data, text));
        }
        if let Some(mount) = function.mounts.iter().find(|mount| !mount.source.exists()) {
            let (source, name) = (mount.source.display(), &function.name);
            return Err(Failure::text(
                Exit::Missing,
                format!("function {name}: {source} does not exist"),
            ));
        }
        let annotations =
            function.all_annotations(&self.workflow.name, |name| self.images[name].name.clone());
        let spec = oci::spec(&oci::FunctionSpec {
            namespace: node.containerd.namespace(),
            id,
            image: &image,
            args: &function.args,
            env: &function.env,
            mounts: &function.mounts,
            annotations: &annotations,
        })?;
        let hash = hash(&image, function, &annotations);
        let labels =
            [("workflow", &self.workflow.name), ("function", &function.name), ("spec", &hash)]
                .map(|(key, value)| (format!("{LABEL}{key}"), value.clone()));
        Ok(Planned { image: image.name, parent, spec, hash, labels: labels.into() })
    }

    /// Runs the primaries, one after the other. Returns the first exit code that is not 0.
    ///
    /// # Errors
    /// When one cannot be started.
    pub async fn run_primaries(&self, to_stderr: bool) -> Result<u32, Failure> {
        for function in self.containers_of(Role::Primary) {
            let exit = self.run_primary(function, to_stderr).await?;
            if exit != 0 {
                return Ok(exit);
            }
        }
        Ok(0)
    }

    /// The calls of the workflow on all nodes.
    #[must_use]
    pub fn hops(&self) -> Vec<Hop> {
        let read = |node: &Node| {
            hops::read(&node.config.state_dir, node.containerd.namespace(), &self.workflow.name)
        };
        self.nodes.values().flat_map(read).collect()
    }

    /// Ends what this deployment started, so that its shims write the last calls; [`Self::take_down`] removes it.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn stop(&self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].containerd.stop_task(&id).await);
        }
        Ok(outcome?)
    }

    /// Removes what this deployment made.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn take_down(&self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].remove(&id).await);
        }
        outcome
    }

    fn made(&self) -> Vec<(Option<&'a str>, String)> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

/// A container that is to be made.
#[derive(Debug)]
struct Planned {
    image: String,
    parent: String,
    spec: Spec,
    hash: String,
    labels: HashMap<String, String>,
}

impl Planned {
    fn container<'p>(&'p self, id: &'p str) -> NewContainer<'p> {
        NewContainer {
            id,
            image: &self.image,
            parent: &self.parent,
            spec: &self.spec,
            labels: self.labels.clone(),
        }
    }
}

/// Changes when the container would be another one. Not of the configuration's text, whose maps have no order.
fn hash(image: &Stored, function: &Function, annotations: &BTreeMap<String, String>) -> String {
    let Function { args, env, mounts, .. } = function;
    let text = format!("{} {args:?} {env:?} {mounts:?} {annotations:?}", image.digest);
    hex::encode(&Sha256::digest(text)[..8])
}

fn image_of(workflow: &Workflow, function: &Function) -> Result<FunctionImage, Failure> {
    match &function.source {
        Source::Image(name) => Ok(FunctionImage { name: name.clone(), module: None }),
        Source::Module(path) => {
            let module = fs::read(path).with_context(|| {
                format!("function {}: module {} cannot be read", function.name, path.display())
            });
            let module = module.map_err(|error| Failure::new(Exit::Missing, error))?;
            let name = name_of(&workflow.name, &function.name, &module);
            Ok(FunctionImage { name, module: Some(module) })
        }
    }
}

/// The id of a function's container.
#[must_use]
pub fn container_id(workflow: &str, function: &str, replica: u32) -> String {
    let number = if replica == 1 { String::new() } else { format!(".{replica}") };
    let id = format!("{workflow}.{function}");
    if id.len() + number.len() <= ID_MAX {
        return id + &number;
    }
    let digest = hex::encode(&Sha256::digest(&id)[..8]);
    let kept = ID_MAX - number.len() - digest.len() - 1;
    format!("{}-{digest}{number}", &id[..kept].trim_end_matches(['.', '_', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_into_containerd() {
        assert_eq!(container_id("w", "f", 1), "w.f");
        assert_eq!(container_id("w", "f", 12), "w.f.12");
        let long = |function: &str| container_id(&"w".repeat(63), function, 3);
        let (one, other) = (long(&"f".repeat(63)), long(&"g".repeat(63)));
        assert!(one.len() <= ID_MAX && one.ends_with(".3"), "{one}");
        assert_ne!(one, other);
    }
}
