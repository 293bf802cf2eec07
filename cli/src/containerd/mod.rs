//! containerd, as any client sees it: images, snapshots, containers and tasks of one namespace, over its socket.
//!
//! - [`images`]: writes and reads images; [`snapshots`]: unpacks them.
//! - [`containers`]: makes and removes containers; [`tasks`]: their processes; [`exec`]: further ones.
//! - [`oci`]: the configuration of functions; [`native`]: of services.

pub mod containers;
pub mod exec;
pub mod images;
pub mod native;
pub mod oci;
pub mod snapshots;
pub mod tasks;

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::services::v1::introspection_client::IntrospectionClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::version_client::VersionClient;
use containerd_client::services::v1::{CreateRequest, DeleteRequest, PluginsRequest};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Request, Status};
use tokio::sync::RwLock;

use crate::cause;

/// The runtime's name in containerd.
pub const RUNTIME: &str = "io.containerd.cwasi.v1";
/// Type of containerd's plugins that keep root file systems.
const SNAPSHOTTERS: &str = "io.containerd.snapshotter.v1";
/// Longest life of what is written before an image or container refers to it, if this process is killed.
const LEASE_HOURS: u64 = 1;

/// containerd refused something, or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    #[error(
        "containerd does not answer at {address}: {cause}. Is it running, and is this its socket (--address, \
         CONTAINERD_ADDRESS)?",
        address = address.display()
    )]
    Away {
        address: PathBuf,
        /// What the system says.
        cause: String,
    },
    #[error("{operation}: {message}")]
    Refused {
        /// What it was asked for.
        operation: String,
        /// Its kind of refusal.
        code: Code,
        message: String,
    },
    /// It answered something that no containerd answers.
    #[error("{operation}: {problem}")]
    Answer {
        /// What it was asked for.
        operation: String,
        problem: String,
    },
}

impl ContainerdError {
    /// True if what was asked for does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code: Code::NotFound, .. })
    }

    fn exists_already(&self) -> bool {
        matches!(self, Self::Refused { code: Code::AlreadyExists, .. })
    }
}

/// Maps a refusal; `operation` is a phrase such as "image x cannot be read".
fn refused(operation: impl Into<String>) -> impl FnOnce(Status) -> ContainerdError {
    let operation = operation.into();
    move |status| ContainerdError::Refused {
        operation,
        code: status.code(),
        message: status.message().to_owned(),
    }
}

/// A connection to one containerd, for one namespace.
#[derive(Clone, Debug)]
pub struct Containerd {
    channel: Channel,
    namespace: String,
    snapshotter: String,
    /// Keeps new content from being collected.
    lease: Option<String>,
    /// Read-locked by each operation that is done as a whole.
    whole: Arc<RwLock<()>>,
}

impl Containerd {
    /// Connects.
    ///
    /// # Errors
    /// When nothing answers at `address`.
    pub async fn connect(
        address: &Path,
        namespace: &str,
        snapshotter: &str,
    ) -> Result<Self, ContainerdError> {
        let away = |error: &dyn Error| ContainerdError::Away {
            address: address.to_owned(),
            cause: cause::root(error),
        };
        let channel = containerd_client::connect(address).await.map_err(|error| away(&error))?;
        Ok(Self {
            channel,
            namespace: namespace.to_owned(),
            snapshotter: snapshotter.to_owned(),
            lease: None,
            whole: Arc::default(),
        })
    }

    /// Does `work` to its end, also if the caller stops waiting: a signal in the middle of it would leave a lease or a
    /// snapshot behind.
    async fn as_a_whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ContainerdError>> + Send + 'static,
    ) -> Result<T, ContainerdError> {
        let guard = Arc::clone(&self.whole).read_owned().await;
        let task = tokio::spawn(async move {
            let outcome = work.await;
            drop(guard);
            outcome
        });
        // No task of this runtime is cancelled, so an error is a panic of `work`.
        task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// Waits for operations that go on although their callers were interrupted.
    pub async fn settled(&self) {
        let _all = self.whole.write().await;
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// containerd's version.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn version(&self) -> Result<String, ContainerdError> {
        let answer = VersionClient::new(self.channel.clone()).version(()).await;
        Ok(answer.map_err(refused("version cannot be read"))?.into_inner().version)
    }

    /// What is wrong with the snapshotter; `None` if it works.
    ///
    /// # Errors
    /// When containerd does not answer.
    pub async fn snapshotter_problem(&self) -> Result<Option<String>, ContainerdError> {
        let request = PluginsRequest { filters: vec![format!("type=={SNAPSHOTTERS}")] };
        let answer = IntrospectionClient::new(self.channel.clone()).plugins(request).await;
        let plugins = answer.map_err(refused("plugins cannot be listed"))?.into_inner().plugins;
        let plugin = plugins.into_iter().find(|plugin| plugin.id == self.snapshotter);
        Ok(match plugin {
            None => Some("containerd has no such snapshotter".to_owned()),
            Some(plugin) => plugin.init_err.map(|error| error.message),
        })
    }

    /// Does `work` as a whole, with a connection whose new content is kept meanwhile.
    async fn with_lease<T, W>(
        &self,
        work: impl FnOnce(Self) -> W + Send + 'static,
    ) -> Result<T, ContainerdError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, ContainerdError>> + Send,
    {
        let containerd = self.clone();
        let leased = async move {
            let leased = containerd.leased().await?;
            let outcome = work(leased.clone()).await;
            // An expired lease is collected like an ended one.
            let _expires = leased.release().await;
            outcome
        };
        self.as_a_whole(leased).await
    }

    async fn leased(&self) -> Result<Self, ContainerdError> {
        let id = format!("cwasi-{}", unique());
        let expires =
            std::time::SystemTime::now() + std::time::Duration::from_secs(LEASE_HOURS * 3600);
        let expires = prost_types::Timestamp::from(expires).to_string();
        let labels = [("containerd.io/gc.expire".to_owned(), expires)].into();
        let request = self.request(CreateRequest { id: id.clone(), labels })?;
        let answer = LeasesClient::new(self.channel.clone()).create(request).await;
        answer.map_err(refused("a lease cannot be made"))?;
        Ok(Self { lease: Some(id), ..self.clone() })
    }

    async fn release(self) -> Result<(), ContainerdError> {
        let Some(id) = self.lease.clone() else { return Ok(()) };
        let request = self.request(DeleteRequest { id, sync: false })?;
        let answer = LeasesClient::new(self.channel.clone()).delete(request).await;
        answer.map(|_| ()).map_err(refused("a lease cannot be removed"))
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, ContainerdError> {
        let mut request = Request::new(message);
        let mut insert = |key: &'static str, value: &str| {
            let value = value.parse().map_err(|_| ContainerdError::Answer {
                operation: format!("`{value}` cannot be sent"),
                problem: "use printable ASCII".to_owned(),
            })?;
            request.metadata_mut().insert(key, value);
            Ok::<_, ContainerdError>(())
        };
        insert("containerd-namespace", &self.namespace)?;
        if let Some(lease) = &self.lease {
            insert("containerd-lease", lease)?;
        }
        Ok(request)
    }
}

/// A text that no other process uses at this time.
fn unique() -> String {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), since.as_nanos())
}
