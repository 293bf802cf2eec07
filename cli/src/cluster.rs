//! `--kube`: the verbs of a cluster are in a program of its own, `kubectl-cwasi`, so that the programs of a node link no
//! client of Kubernetes. Why a verb cannot be done on a cluster, and what to do about it.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::failure::{Exit, Failure};

/// The program with the verbs of a cluster. kubectl finds it by its name, as `kubectl cwasi`.
const PROGRAM: &str = "kubectl-cwasi";
/// The page with the rights of each verb.
const PAGE: &str = "docs/kubernetes.md#the-command-on-a-cluster";

/// Replaces this process by [`PROGRAM`], which gets the same command line: the one beside this program, or that of
/// `PATH`. Returns why it cannot be started.
pub(crate) fn exec() -> Failure {
    let beside = env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    let program = beside.filter(|it| it.is_file()).unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(env::args_os().skip(1)).exec();
    let text = format!(
        "--kube is done by {PROGRAM}, which cannot be started: {error}. It has to be beside this program or in PATH: \
         `make install` puts it there, `cargo build -p {PROGRAM}` builds it"
    );
    Failure::text(Exit::Missing, text)
}

/// Why a verb cannot be done on a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "no cluster is configured: {problem}. Set KUBECONFIG, or write ~/.kube/config as for kubectl"
    )]
    NotConfigured { problem: String },
    #[error("kubectl's configuration cannot be used: {problem}. Does `kubectl version` work?")]
    Configuration { problem: String },
    #[error(
        "kubectl's configuration has no context {name}{nearest}; `kubectl config get-contexts` lists them"
    )]
    NoContext { name: String, nearest: String },
    #[error(
        "no Kubernetes API answers at {url}: {cause}. Does the cluster run, and is it the one that you mean \
         (--context, KUBECONFIG)?"
    )]
    Away { url: String, cause: String },
    #[error("the cluster does not know the user of this context: {message}. Log in again")]
    Unauthorized { message: String },
    #[error(
        "the cluster does not let you `{verb} {resource}` in namespace {namespace}: {message}. {PAGE} has the \
         rights of each verb"
    )]
    Denied { verb: &'static str, resource: &'static str, namespace: String, message: String },
    #[error("`{verb} {resource}` in namespace {namespace} failed: {message}")]
    Refused { verb: &'static str, resource: &'static str, namespace: String, message: String },
    #[error(
        "the cluster has no kind Workflow: apply deploy/kubernetes/crd.yaml and operator.yaml (docs/kubernetes.md)"
    )]
    NoDefinition,
    #[error(
        "namespace {namespace} has no workflow {name}{nearest}; `cwasi ps --kube -n NAMESPACE` lists those of \
         another one"
    )]
    NoWorkflow { namespace: String, name: String, nearest: String },
    #[error("workflow {workflow} has no function {name}{nearest}")]
    NotInWorkflow { workflow: String, name: String, nearest: String },
    #[error("{what} has no pods in namespace {namespace}: {problem}")]
    NoPods { what: String, namespace: String, problem: String },
    #[error("no running pod of namespace {namespace} has a function {name}{nearest}")]
    NoFunction { namespace: String, name: String, nearest: String },
    #[error(
        "node {node} has no running pod of the DaemonSet cwasi-install in namespace {namespace}, by which this command \
         reaches the node: install the runtime with deploy/kubernetes/node, or name its namespace by --system-namespace"
    )]
    NoNode { node: String, namespace: String },
    #[error(
        "namespace {namespace} has no running pod of the DaemonSet cwasi-install, by which this command reaches the \
         nodes: install the runtime with deploy/kubernetes/node, or name its namespace by --system-namespace"
    )]
    NoNodes { namespace: String },
    #[error("the command on node {node} ended without an exit code: {problem}")]
    Ended { node: String, problem: String },
    #[error(
        "workflow {workflow} is deleted, but pods remain after {waited}: {pods}. Their grace period may be longer: \
         `kubectl get pods -n {namespace} -l cwasi.dev/workflow={workflow}` shows them"
    )]
    Remains { workflow: String, namespace: String, waited: String, pods: String },
    #[error(
        "{found} logs are too many to follow: at most {max}. Name one function (WORKFLOW/FUNCTION)"
    )]
    TooManyLogs { found: usize, max: usize },
}
