//! A workflow on its nodes: writes images, starts what does not run, runs primaries, takes down what it started.
//!
//! - [`platform`]: what it needs of the place where functions run; `node`: one containerd; `local`: processes of this
//!   user.
//! - `containers`: plans, creates and starts one; `removal`: ends and removes them; `secondaries`: starts all
//!   secondaries.
//! - `services`: starts the backends of functions, in `service_containers`, and removes them; `health`: waits until
//!   they are ready; `service_lock`: commands that run at the same time.
//! - `primary`: a function that runs to its end; `input`: its stdin; [`hops`]: the calls between functions.
//! - `replacement`: a container in the place of one that runs; `phases`: the parts of the command's own run.
//! - [`left_out`]: what a command does not do with a file.
//! - [`log_file`]: reads a function's log across its files.
//! - [`mounts`]: what is wrong with the files of a function.
//! - `user_folders`: the folders that the environment names; `user_cache`: that of compiled modules.
//! - [`run_folder`]: a folder of one run, which a later command removes when this one is killed.
//! - [`display`]: what the user sees meanwhile.

mod containers;
pub mod display;
mod health;
pub mod hops;
mod input;
pub mod left_out;
mod local;
pub mod log_file;
pub mod mounts;
pub mod node;
mod phases;
pub mod platform;
mod primary;
mod removal;
mod replacement;
pub mod run_folder;
mod secondaries;
pub mod service_containers;
mod service_lock;
mod services;
mod user_cache;
mod user_folders;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
use cwasi_host::caller::Tracer;
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{SpanKind, TraceContext};

pub use self::containers::container_id;
pub(crate) use self::containers::image_of;
use self::display::Display;
use self::input::Input;
pub use self::local::{LocalAction, LocalNode};
pub use self::node::Node;
use self::phases::RunPhases;
use self::platform::{FunctionImage, Platform};
use self::replacement::Replacement;
use self::run_folder::RunFolder;
use self::service_lock::ServiceLock;
pub use self::user_folders::{check_named_config, user_state};
use crate::arguments::Global;
use crate::failure::{Exit, Failure};
use cwasi_workflow::{Embedded, Role, Workflow};

/// Service of the span of a whole run.
const RUN_SERVICE: &str = "cwasi";

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
    /// Containers of functions that this deployment made, or is about to make: node and id.
    made: Mutex<Vec<(Option<&'a str>, String)>>,
    /// Services that it made, or is about to make: node and id.
    made_services: Mutex<Vec<(Option<&'a str>, String)>>,
    /// By state directory, as far as they are used.
    service_locks: Mutex<BTreeMap<PathBuf, Arc<ServiceLock>>>,
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

/// A container that runs otherwise than the file says, when it must not be replaced.
fn outdated_failure(id: &str) -> Failure {
    let text = format!(
        "{id} runs otherwise than the file says, and `run` changes nothing that is deployed: `cwasi deploy` it as the \
         file says, or `cwasi rm {id}`"
    );
    Failure::text(Exit::Failed, text)
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
    /// When functions and services have no common network, a node does not answer, or a module cannot be read.
    pub async fn new(workflow: &'a Workflow, global: &Global) -> Result<Self, Failure> {
        if let Some(problem) = workflow.network_problems().into_iter().next() {
            return Err(Failure::text(Exit::Data, problem.text));
        }
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
            made_services: Mutex::default(),
            service_locks: Mutex::default(),
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

    /// Writes the images that are missing: each function's, and those that it embeds. Looks for those of the services
    /// that functions of these roles use.
    ///
    /// # Errors
    /// When an image of the file is in no containerd, or containerd refuses.
    pub async fn write_images(&self, roles: &[Role]) -> Result<(), Failure> {
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
        for service in self.services_of(roles) {
            self.nodes[&self.node_name_of(service)].provide_service(service).await?;
        }
        self.phases.images_written();
        Ok(())
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
}
