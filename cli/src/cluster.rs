//! Why a verb cannot be done on a cluster, and what to do about it. `kubectl-cwasi` meets these errors, and
//! [`crate::failure`] has their exit codes.

/// The page with the rights of each verb.
const PAGE: &str = "docs/kubernetes.md#the-command-on-a-cluster";

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
