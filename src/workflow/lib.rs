//! The workflow file: functions, how they are deployed, and where. `docs/workflow.md` is its reference.
//!
//! - [`document`]: YAML as a tree with locations.
//! - [`fields`]: the table of fields; [`schema`]: what is generated from it.
//! - `reader`: the tree, checked, as a [`Workflow`].
//! - [`services`]: backends of functions, and how functions get their addresses.
//! - [`nearest`]: words that a user may have meant; [`visible`]: others' texts in messages.
//!
//! Invariant: a [`Workflow`] has only annotations that the runtime's own parser accepts. Nothing here asks containerd
//! or a cluster.

pub mod document;
pub mod fields;
pub mod nearest;
mod reader;
pub mod schema;
pub mod services;
pub mod visible;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cwasi_config::regular_file;

use self::document::{Location, Problem};
use self::services::{Address, SHARED_HOST, Service};

/// Longest file in bytes.
const FILE_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// `metadata.name`.
    pub name: String,
    /// The functions, in the file's order.
    pub functions: Vec<Function>,
    /// Backends that functions need, in the file's order.
    pub services: Vec<Service>,
    /// Other containerds than that of the command line, by name.
    pub nodes: BTreeMap<String, NodeSpec>,
    pub placement: Placement,
    /// True if functions may move to the functions that they call much, at their next rollout.
    pub may_move: bool,
    /// Edges for which the file says something else than the policy.
    pub placed_edges: Vec<PlacedEdge>,
}

/// Where a cluster puts the functions of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedEdge {
    /// Names of two different functions.
    pub caller: String,
    pub callee: String,
    pub placement: EdgePlacement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgePlacement {
    /// On one node, if there is room.
    Node,
    /// On different nodes, if there are.
    Spread,
}

/// Where a cluster puts the functions of a workflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As [`Self::Node`], with advice from what calls move.
    #[default]
    Auto,
    /// On one node, if there is room.
    Node,
    /// In one pod.
    Pod,
    /// Over the nodes.
    Spread,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, by which others call it.
    pub name: String,
    /// Where the file has it.
    pub location: Location,
    /// Where its module is.
    pub source: Source,
    pub role: Role,
    /// Arguments after the module's path.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Where relative paths begin; `None` = as the image says.
    pub working_dir: Option<PathBuf>,
    /// Files and folders of the host.
    pub mounts: Vec<Mount>,
    /// True for the node's network instead of one of its own.
    pub host_network: bool,
    pub replicas: u32,
    /// Names of the services that it needs.
    pub uses: Vec<String>,
    /// Name of its node; `None` = the containerd of the command line.
    pub node: Option<String>,
    /// Modules in its VM: the name inside, and where the module is from.
    pub embed: Vec<(String, Embedded)>,
    /// Annotations that fields of the file became. [`Self::all_annotations`] has the others, too.
    pub annotations: BTreeMap<String, String>,
    pub cluster: InCluster,
}

impl Function {
    /// The port of `http` that nothing answers while the function has no pod (`scale.min: 0`): a Service has no
    /// endpoint then. A gateway reaches it, because it starts a pod.
    #[must_use]
    pub fn port_unreached_at_zero(&self) -> Option<u16> {
        let http = self.annotations.get("cwasi.http").map_or("", String::as_str);
        let is_at_zero = self.cluster.scale.is_some_and(|scale| scale.min == 0);
        let has_gateway = http.split(',').any(|part| part.trim() == "gateway");
        self.cluster.http_port.filter(|_| is_at_zero && !has_gateway)
    }
}

/// What only a cluster does with a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InCluster {
    pub scale: Option<Scale>,
    /// When a primary runs: Kubernetes' syntax of CronJobs.
    pub schedule: Option<String>,
    /// The port of `http`.
    pub http_port: Option<u16>,
    /// The port of its Service; `None` if it has no `http_port`.
    pub service_port: Option<u16>,
    pub ingress: Option<Ingress>,
}

/// Numbers of pods of a secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub min: u32,
    pub max: u32,
    /// CPU time that a pod uses on average, in percent of its request, if `min` is not 0.
    pub target: u32,
    /// Calls that a pod has on average, if `min` is 0; `None` = `concurrency`, or 1.
    pub calls: Option<u32>,
    /// Time without calls after which the last pod ends, if `min` is 0.
    pub cooldown: Duration,
}

/// Clients outside of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// `None` = any name.
    pub host: Option<String>,
    /// First part of the URLs' paths.
    pub path: String,
    /// `None` = the cluster's default.
    pub class: Option<String>,
    /// Name of a Secret with the certificate.
    pub tls: Option<String>,
    /// `None` = an Ingress; otherwise an HTTPRoute of this Gateway, which has class and certificates.
    pub gateway: Option<GatewayName>,
}

/// A Gateway of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayName {
    /// `None` = the workflow's.
    pub namespace: Option<String>,
    pub name: String,
}

impl GatewayName {
    /// `NAME` or `NAMESPACE/NAME`, as the file has it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let is_name = |name: &str| {
            let inside = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
            };
            !name.is_empty() && name.bytes().all(inside) && !name.starts_with(['-', '.'])
        };
        (is_name(name) && namespace.is_none_or(is_name))
            .then(|| Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

impl std::fmt::Display for GatewayName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Where a module is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a file of this machine.
    Module(PathBuf),
    /// In an image of this name.
    Image(String),
}

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs once.
    Primary,
    Secondary,
    /// Is an image that others embed.
    Library,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Embedded {
    /// A function of the same file.
    Function(String),
    Image(String),
}

/// A file or folder of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the container.
    pub target: String,
    /// True if the function cannot write there.
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    pub address: PathBuf,
    /// The node's configuration file; `None` = as on this node.
    pub config: Option<PathBuf>,
}

/// What the command line adds to a file.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Values by their path in the file, as `spec.functions.a.queue` and `8`.
    pub set: Vec<(String, String)>,
    /// Sources of mounts by the mounts' names.
    pub inputs: Vec<(String, PathBuf)>,
    /// Addresses of services that run already, by the services' names.
    pub services: Vec<(String, Address)>,
}

/// A file that is no workflow.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    #[error("workflow file {path} cannot be read", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}", Problems { path, problems })]
    Wrong { path: PathBuf, problems: Vec<Problem> },
}

/// Faults, a line each, in the form that editors understand.
struct Problems<'a> {
    path: &'a Path,
    problems: &'a [Problem],
}

impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let faults = if count == 1 { "fault" } else { "faults" };
        write!(f, "{} has {count} {faults}:", self.path.display())?;
        for Problem { location, text } in self.problems {
            let text = visible::word(text);
            match location {
                Location::File(..) => write!(f, "\n{}:{location}: {text}", self.path.display())?,
                Location::CommandLine | Location::Object => write!(f, "\n{location}: {text}")?,
            }
        }
        Ok(())
    }
}

impl Workflow {
    /// Reads a file. Its functions have the addresses that services have on a machine.
    ///
    /// # Errors
    /// All faults.
    pub fn load(path: &Path, additions: &Additions) -> Result<Self, WorkflowError> {
        let fail = |source| WorkflowError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        regular_file::open(path)
            .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
            .map_err(fail)?;
        if text.len() as u64 > FILE_MAX {
            return Err(fail(io::Error::other(format!("it is longer than {FILE_MAX} bytes"))));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut workflow = Self::parse(&text, folder, additions)
            .map_err(|problems| WorkflowError::Wrong { path: path.to_owned(), problems })?;
        workflow.connect(|service| {
            let shared = || Address { host: SHARED_HOST.to_owned(), port: service.port };
            service.external.clone().unwrap_or_else(shared)
        });
        Ok(workflow)
    }

    /// Reads a file's text; its paths begin at `folder`.
    ///
    /// # Errors
    /// All faults, in the order of their locations.
    pub fn parse(text: &str, folder: &Path, additions: &Additions) -> Result<Self, Vec<Problem>> {
        let mut root = document::parse(text).map_err(|problem| vec![problem])?;
        for (path, value) in &additions.set {
            let node = document::parse_value(value).map_err(|problem| vec![problem])?;
            let path: Vec<&str> = path.split('.').collect();
            root.set(&path, node).map_err(|problem| vec![problem])?;
        }
        reader::read(&root, folder, additions)
    }

    /// Reads an object of Kubernetes' API: JSON with the fields of a file.
    ///
    /// # Errors
    /// All faults.
    pub fn from_object(object: &serde_json::Value) -> Result<Self, Vec<Problem>> {
        let root = document::from_json(object).map_err(|problem| vec![problem])?;
        reader::read(&root, Path::new(""), &Additions::default())
    }

    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl PlacedEdge {
    /// The function at its other end; `None` if `function` is at neither.
    #[must_use]
    pub fn other_end(&self, function: &str) -> Option<&str> {
        match function {
            it if it == self.caller => Some(&self.callee),
            it if it == self.callee => Some(&self.caller),
            _ => None,
        }
    }
}

impl Function {
    /// All annotations of its containers. `image_of` gives the image of a function of the same file.
    #[must_use]
    pub fn all_annotations(
        &self,
        workflow: &str,
        image_of: impl Fn(&str) -> String,
    ) -> BTreeMap<String, String> {
        let mut all = self.annotations.clone();
        all.insert("cwasi.workflow".to_owned(), workflow.to_owned());
        all.insert("cwasi.function".to_owned(), self.name.clone());
        if !self.embed.is_empty() {
            let entry = |(name, from): &(String, Embedded)| match from {
                Embedded::Function(function) => format!("{name}={}", image_of(function)),
                Embedded::Image(image) => format!("{name}={image}"),
            };
            let entries: Vec<_> = self.embed.iter().map(entry).collect();
            all.insert("cwasi.embed".to_owned(), entries.join(","));
        }
        all
    }
}
