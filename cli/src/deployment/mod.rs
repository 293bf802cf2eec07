//! A workflow on its nodes: writes images, starts what does not run, runs primaries, takes down what it started.
//!
//! - [`platform`]: what it needs of the place where functions run; `node`: one containerd; `local`: processes of this
//!   user.
//! - `primary`: a function that runs to its end; `input`: its stdin; [`hops`]: the calls between functions.
//! - `replacement`: a container in the place of one that runs; `phases`: the parts of the command's own run.
//! - [`log_file`]: reads a function's log across its files.
//! - [`mounts`]: what is wrong with the files of a function.
//! - [`run_folder`]: a folder of one run, which a later command removes when this one is killed.
//! - [`display`]: what the user sees meanwhile.
//!
//! Invariant: a container is noted before it is made, so that an interrupted start is taken down, too.

pub mod display;
pub mod hops;
mod input;
mod local;
pub mod log_file;
pub mod mounts;
pub mod node;
mod phases;
pub mod platform;
mod primary;
mod replacement;
pub mod run_folder;
mod user_cache;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
use cwasi_host::caller::Tracer;
use cwasi_host::group::group_id;
use cwasi_host::metrics::snapshot::EdgeSnapshot;
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{SpanKind, TraceContext};
use futures_util::future::try_join_all;
use sha2::{Digest as _, Sha256};

use self::display::{Display, Line};
use self::input::Input;
pub use self::local::{LocalNode, user_state};
pub use self::node::Node;
use self::phases::RunPhases;
use self::platform::{FunctionImage, Known, PlannedFunction, Platform};
use self::replacement::Replacement;
use self::run_folder::RunFolder;
use crate::arguments::Global;
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use crate::image::name_of;
use crate::module;
use crate::workflow::{Embedded, Function, Role, Source, Workflow};

/// The annotation that makes a primary's run a part of a trace.
const TRACE_ANNOTATION: &str = "cwasi.trace";
/// Service of the span of a whole run.
const RUN_SERVICE: &str = "cwasi";
/// Longest id of a container in containerd.
const ID_MAX: usize = 76;

/// A workflow and its nodes.
#[derive(Debug)]
pub struct Deployment<'a, P> {
    workflow: &'a Workflow,
    /// By the name in the file; the command line's has none.
    nodes: BTreeMap<Option<&'a str>, P>,
    /// The functions' images, with the module of those that are built here.
    images: HashMap<&'a str, FunctionImage>,
    display: Display,
    /// The trace of the primaries' runs; `None` = as the file or the node says.
    trace: Option<TraceContext>,
    phases: RunPhases,
    /// Held while a container is replaced.
    replacing: tokio::sync::Mutex<()>,
    /// Replacements whose surge container serves.
    replacements: Mutex<Vec<Replacement<'a>>>,
    /// Containers that are being created, also those whose creation was interrupted and may go on in containerd.
    creating: AtomicUsize,
    /// Containers that this deployment made, or is about to make: node and id.
    made: Mutex<Vec<(Option<&'a str>, String)>>,
    input: Input,
    /// Folders with the fifos of primaries. A shim may open one until its container is removed.
    fifos: Mutex<Vec<RunFolder>>,
}

/// What to do with a container that runs otherwise than the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outdated {
    Replace,
    /// Refuse to start the workflow.
    Refuse,
}

/// What became of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployed {
    Started,
    /// It ran already, as the file says.
    Unchanged,
}

impl<'a> Deployment<'a, Node> {
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
        Self::on(workflow, nodes)
    }
}

impl<'a> Deployment<'a, LocalNode> {
    /// Starts a daemon of this user, and reads all modules.
    ///
    /// # Errors
    /// When a field of the workflow needs containerd, the daemon does not start, or a module cannot be read.
    pub async fn local(workflow: &'a Workflow, global: &Global) -> Result<Self, Failure> {
        let node = LocalNode::start(workflow, &global.namespace).await?;
        Self::on(workflow, [(None, node)].into())
    }

    /// Ends the daemon. Nothing of the deployment is left.
    pub async fn end(self) {
        for node in self.nodes.into_values() {
            node.end().await;
        }
    }
}

impl<'a, P: Platform> Deployment<'a, P> {
    fn on(workflow: &'a Workflow, nodes: BTreeMap<Option<&'a str>, P>) -> Result<Self, Failure> {
        let mut images = HashMap::new();
        for function in &workflow.functions {
            images.insert(function.name.as_str(), image_of(workflow, function)?);
        }
        let (display, made, fifos) = (Display::default(), Mutex::default(), Mutex::default());
        let (input, replacing) = (Input::default(), tokio::sync::Mutex::default());
        let creating = AtomicUsize::new(0);
        Ok(Self {
            workflow,
            nodes,
            images,
            display,
            trace: None,
            phases: RunPhases::begin(),
            replacing,
            replacements: Mutex::default(),
            creating,
            made,
            input,
            fifos,
        })
    }

    /// Runs primaries whose field `trace` says nothing in this trace.
    #[must_use]
    pub fn traced(self, trace: TraceContext) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// What the user sees.
    #[must_use]
    pub const fn display(&self) -> &Display {
        &self.display
    }

    fn node(&self, function: &'a Function) -> &P {
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
                self.node(function).provide(name, &self.images[name]).await?;
            }
        }
        self.phases.images_written();
        Ok(())
    }

    /// Starts the secondaries that do not run as the file says, all at a time.
    ///
    /// # Errors
    /// The first one that does not start.
    pub async fn start_secondaries(
        &self,
        outdated: Outdated,
    ) -> Result<Vec<(String, Deployed)>, Failure> {
        let mut starts = Vec::new();
        for function in self.containers_of(Role::Secondary) {
            for replica in 1..=function.replicas {
                starts.push(self.start_secondary(function, replica, outdated));
            }
        }
        try_join_all(starts).await
    }

    async fn start_secondary(
        &self,
        function: &'a Function,
        replica: u32,
        outdated: Outdated,
    ) -> Result<(String, Deployed), Failure> {
        let node = self.node(function);
        let id = container_id(&self.workflow.name, &function.name, replica);
        let plan = self.plan(function, &id).await?;
        let known = node.known(&self.workflow.name, &id, &plan).await?;
        match known {
            Known::Runs { as_planned: true } => return Ok((id, Deployed::Unchanged)),
            Known::Runs { .. } if outdated == Outdated::Refuse => {
                let text = format!(
                    "{id} runs otherwise than the file says, and `run` changes nothing that is deployed: `cwasi deploy` \
                     it as the file says, or `cwasi rm {id}`"
                );
                return Err(Failure::text(Exit::Failed, text));
            }
            Known::Runs { .. } if !wants_port_of_node(function) => {
                self.replace(function, replica, &id, &plan).await?;
            }
            Known::Runs { .. } | Known::Idle => {
                node.remove(&id).await?;
                self.note(function, &id);
                self.start_shown(function, &id, &plan).await?;
            }
        }
        Ok((id, Deployed::Started))
    }

    /// Starts a secondary and shows it. The failure has the end of its log.
    async fn start_shown(
        &self,
        function: &'a Function,
        id: &str,
        plan: &P::Plan,
    ) -> Result<(), Failure> {
        let line = self.display.line(id);
        let module = self.images[function.name.as_str()].module.as_ref().map(Vec::len);
        let started = self.start(function, id, plan, &line, module).await;
        line.clear();
        started.map_err(|failure| failure.with(&self.node(function).log_tail(id)))?;
        if !self.display.is_live() {
            line.state("running");
        }
        Ok(())
    }

    async fn start(
        &self,
        function: &'a Function,
        id: &str,
        plan: &P::Plan,
        line: &Line,
        module: Option<usize>,
    ) -> Result<(), Failure> {
        let node = self.node(function);
        line.state("starting");
        let stdio = node.create_log(id)?;
        tokio::select! {
            created = self.create(node, id, plan, &stdio) => created?,
            never = line.compiling(Instant::now(), module) => match never {},
        }
        node.start(id).await
    }

    /// Creates a container. One that is interrupted stays counted.
    async fn create(
        &self,
        node: &P,
        id: &str,
        plan: &P::Plan,
        stdio: &Stdio,
    ) -> Result<(), Failure> {
        self.creating.fetch_add(1, Ordering::Relaxed);
        let created = node.create(id, plan, stdio).await;
        self.creating.fetch_sub(1, Ordering::Relaxed);
        created
    }

    fn note(&self, function: &'a Function, id: &str) {
        let node = function.node.as_deref();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((node, id.to_owned()));
    }

    /// A container that this deployment has made stays when it is taken down.
    fn forget(&self, id: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, made)| made != id);
    }

    /// Removes the workflow's containers that the file does not have: of functions that left it, and beyond the replicas.
    /// Returns their ids.
    ///
    /// # Errors
    /// The first one that cannot be removed.
    pub async fn prune(&self) -> Result<Vec<String>, Failure> {
        let name = &self.workflow.name;
        let ids = |function: &'a Function| {
            let replicas = 1..=function.replicas;
            replicas.map(|replica| container_id(name, &function.name, replica))
        };
        let mut pruned = Vec::new();
        for (place, node) in &self.nodes {
            let here = |function: &&Function| function.node.as_deref() == *place;
            let wanted: BTreeSet<String> =
                self.containers_of(Role::Secondary).filter(here).flat_map(ids).collect();
            for id in node.deployed(name).await? {
                if !wanted.contains(&id) {
                    node.remove(&id).await?;
                    pruned.push(id);
                }
            }
        }
        Ok(pruned)
    }

    /// A folder for fifos of a node's functions, which is removed with the deployment.
    fn fifos_folder(&self, node: &P) -> Result<PathBuf, Failure> {
        let folder = node.run_folder().with_context(|| {
            format!("a folder for fifos cannot be made in {}", node.runs().display())
        })?;
        let path = folder.path().to_owned();
        self.fifos.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
        Ok(path)
    }

    async fn plan(&self, function: &'a Function, id: &str) -> Result<P::Plan, Failure> {
        let workflow = &self.workflow.name;
        let mut annotations =
            function.all_annotations(workflow, |name| self.images[name].name.clone());
        if let (Some(trace), Role::Primary) = (self.trace, function.role) {
            let said = annotations.entry(TRACE_ANNOTATION.to_owned());
            said.or_insert_with(|| trace.to_string());
        }
        let image = &self.images[function.name.as_str()];
        let planned = PlannedFunction { workflow, function, image, annotations: &annotations, id };
        self.node(function).plan(planned).await
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
    pub fn hops(&self) -> Vec<EdgeSnapshot> {
        let read = |node: &P| hops::read(node.state_dir(), node.namespace(), &self.workflow.name);
        self.nodes.values().flat_map(read).collect()
    }

    /// The requests that wait for a function on all nodes.
    fn queued(&self, function: &str) -> u64 {
        let read =
            |node: &P| hops::functions(node.state_dir(), node.namespace(), &self.workflow.name);
        let all = self.nodes.values().flat_map(read).filter(|it| it.key.function == function);
        all.map(|it| it.gauges.queued).sum()
    }

    /// Records the span of the whole run on the first node.
    pub async fn record_run(&self, span: OpenSpan, exit: i32) {
        let Some(node) = self.nodes.values().next() else { return };
        let identity = Identity {
            namespace: node.namespace().to_owned(),
            pod_namespace: String::new(),
            function: RUN_SERVICE.to_owned(),
        };
        let name = self.workflow.name.as_str();
        let (kind, phases) = (SpanKind::Run, self.phases.until_now());
        let end = SpanEnd { kind, peer: name, errno: exit, phases: &phases, ..SpanEnd::default() };
        let tracer = Tracer::of_process(node.config());
        tracer.record(&identity, name, span.end(end));
        tracer.flush().await;
    }

    /// Ends what this deployment started, so that its shims write the last calls; [`Self::take_down`] removes it.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn stop(&self) -> Result<(), Failure> {
        self.phases.ends();
        self.settled().await;
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].stop(&id).await);
        }
        outcome
    }

    /// Removes what this deployment made.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn take_down(&self) -> Result<(), Failure> {
        self.settled().await;
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].remove(&id).await);
        }
        outcome
    }

    /// Removes what a start leaves that was interrupted in containerd: it goes on for a moment, and makes the function's
    /// log again.
    pub async fn clear_late_starts(&self) {
        if self.creating.load(Ordering::Relaxed) > 0 {
            let workflow = [("cwasi.workflow".to_owned(), self.workflow.name.clone())].into();
            for node in self.nodes.values() {
                node.end_late_starts(&group_id(node.namespace(), "", &workflow)).await;
            }
        }
        for (node, id) in self.made() {
            self.nodes[&node].forget_log(&id);
        }
    }

    async fn settled(&self) {
        for node in self.nodes.values() {
            node.settled().await;
        }
    }

    fn made(&self) -> Vec<(Option<&'a str>, String)> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

/// True for a port of the node, which two containers cannot have at a time.
fn wants_port_of_node(function: &Function) -> bool {
    let http = function.annotations.get("cwasi.http").map_or("", String::as_str);
    function.host_network && http.split(',').any(|part| part.trim().parse::<u16>().is_ok())
}

/// The image of a function; a local module is read.
pub(crate) fn image_of(workflow: &Workflow, function: &Function) -> Result<FunctionImage, Failure> {
    match &function.source {
        Source::Image(name) => Ok(FunctionImage { name: name.clone(), module: None }),
        Source::Module(path) => {
            let module = module::read_file(path).with_context(|| {
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
