//! The arguments of every verb. Address and namespace are named as those of `ctr` and `nerdctl`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::failure::{Exit, Failure};

/// containerd's socket, unless the user names another one.
const ADDRESS_DEFAULT: &str = "/run/containerd/containerd.sock";
/// containerd's namespace, unless the user names another one.
const NAMESPACE_DEFAULT: &str = "default";

/// Namespace of the runtime in a cluster, as deploy/kubernetes has it.
const SYSTEM_NAMESPACE: &str = "cwasi-system";

/// Longest name of a namespace in containerd.
const NAMESPACE_MAX: usize = 76;

/// A namespace as containerd knows it.
fn namespace(name: &str) -> Result<String, String> {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|it| it.is_ascii_alphanumeric());
    if name.len() <= NAMESPACE_MAX && name.split(['.', '_', '-']).all(is_part) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "a namespace has letters and digits, with single `.`, `_` or `-` between them, and at most {NAMESPACE_MAX} bytes"
    ))
}

/// Arguments of every verb.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// containerd's socket
    #[arg(
        short,
        long,
        global = true,
        env = "CONTAINERD_ADDRESS",
        default_value = ADDRESS_DEFAULT,
        value_name = "PATH"
    )]
    pub address: PathBuf,
    /// containerd's namespace; with --kube that of the cluster
    #[arg(
        short,
        long,
        global = true,
        env = "CONTAINERD_NAMESPACE",
        default_value = NAMESPACE_DEFAULT,
        value_parser = namespace,
        value_name = "NAME"
    )]
    pub namespace: String,
    /// containerd's snapshotter
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = "overlayfs",
        value_parser = NonEmptyStringValueParser::new(),
        value_name = "NAME"
    )]
    pub snapshotter: String,
    /// Print results as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Which of them stand on the command line.
    #[arg(skip)]
    pub given: Given,
}

/// Arguments that a cluster takes from the command line only: variables and defaults are those of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    pub address: bool,
    pub namespace: bool,
}

/// Arguments of verbs that also work on a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArguments {
    /// Work on a Kubernetes cluster, that of kubectl's configuration (KUBECONFIG); --namespace is the cluster's
    #[arg(long)]
    pub kube: bool,
    /// Context of kubectl's configuration [default: its current one]
    #[arg(long, requires = "kube", value_name = "NAME")]
    pub context: Option<String>,
}

/// How a verb with `--push` speaks to the registry.
#[derive(Clone, Copy, Debug, Args)]
pub struct SchemeArguments {
    /// Speak HTTP without TLS to the registry [default: true for registries on this machine]
    #[arg(
        long,
        requires = "push",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub plain_http: Option<bool>,
}

/// Arguments of verbs that reach nodes of a cluster.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Namespace of the runtime's DaemonSet cwasi-install
    #[arg(long, requires = "kube", default_value = SYSTEM_NAMESPACE, value_name = "NAME")]
    pub system_namespace: String,
}

impl Global {
    /// Refuses `--json` for `verb`, which does not print JSON but `what`.
    ///
    /// # Errors
    /// When `--json` is given.
    pub fn refuse_json(&self, verb: &str, what: &str) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let text = format!("`cwasi {verb}` cannot be used with --json: {what}");
        Err(Failure::text(Exit::Usage, text))
    }
}
