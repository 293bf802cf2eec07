//! A Kubernetes cluster: its Workflows, their pods, and this command on its nodes. kubectl's configuration says which
//! cluster and user.
//!
//! - [`workflows`]: the Workflows of a namespace; [`pods`]: their pods, and the functions in pods.
//! - [`node`]: runs the command on a node; `error`: what the API's errors mean.
//!
//! Invariant: it works by Kubernetes' API alone, with the rights of the user.

mod error;
pub mod node;
pub mod pods;
pub mod workflows;

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use cwasi_workflow::nearest::nearest;

use cwasi_cli::cluster::ClusterError;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a cluster, for one namespace.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// The namespace of the command line, or else the context's.
    pub namespace: String,
    /// Address of the API.
    url: String,
}

impl Cluster {
    /// Reads kubectl's configuration, for a context and a namespace that are not its current ones. The cluster is not
    /// asked yet.
    ///
    /// # Errors
    /// When there is no configuration, or a wrong one.
    pub async fn connect(
        context: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<Self, ClusterError> {
        // The gateway's and the registry's, too. An error says that it is there already.
        let _first = rustls::crypto::ring::default_provider().install_default();
        let mut config = configuration(context).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let url = config.cluster_url.to_string();
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        let client = Client::try_from(config)
            .map_err(|error| ClusterError::Configuration { problem: error.to_string() })?;
        Ok(Self { client, namespace, url })
    }

    /// Maps what the API said to `what`: a verb and a resource, as roles name them.
    fn failed<'a>(
        &'a self,
        what: (&'static str, &'static str),
        namespace: &'a str,
    ) -> impl FnOnce(kube::Error) -> ClusterError + 'a {
        move |error| error::of_request(error, &self.url, what, namespace)
    }
}

/// That of kubectl; in a pod without one, the pod's service account.
async fn configuration(context: Option<&str>) -> Result<Config, ClusterError> {
    let known = match Kubeconfig::read() {
        Ok(known) => known,
        Err(error) if context.is_none() => {
            return Config::incluster().map_err(|_no_pod| unread(&error));
        }
        Err(error) => return Err(unread(&error)),
    };
    let names: Vec<_> = known.contexts.iter().map(|it| it.name.clone()).collect();
    if let Some(name) = context.filter(|name| !names.iter().any(|it| it == name)) {
        let nearest = did_you_mean(name, names.iter().map(String::as_str));
        return Err(ClusterError::NoContext { name: name.to_owned(), nearest });
    }
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(known, &options).await.map_err(|error| unread(&error))
}

fn unread(error: &KubeconfigError) -> ClusterError {
    let problem = error.to_string();
    match error {
        KubeconfigError::FindPath
        | KubeconfigError::ReadConfig(..)
        | KubeconfigError::CurrentContextNotSet => ClusterError::NotConfigured { problem },
        _ => ClusterError::Configuration { problem },
    }
}

/// The end of an error about a name that is not known.
#[must_use]
pub fn did_you_mean<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}
