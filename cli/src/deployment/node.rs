//! One containerd of a workflow, with the configuration of its node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cwasi::config::NodeConfig;

use crate::arguments::Global;
use crate::containerd::Containerd;
use crate::failure::Failure;
use crate::workflow::NodeSpec;

/// Most bytes of a log that are quoted in an error.
const QUOTED_MAX: usize = 2_000;

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its containerd.
    pub containerd: Containerd,
    /// Its configuration.
    pub config: NodeConfig,
}

impl Node {
    /// The node of the command line.
    ///
    /// # Errors
    /// When containerd does not answer, or the node's configuration is wrong.
    pub async fn connect(global: &Global) -> Result<Self, Failure> {
        Self::open(global, &global.address, None).await
    }

    /// A node of a workflow file.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn of(global: &Global, spec: &NodeSpec) -> Result<Self, Failure> {
        Self::open(global, &spec.address, spec.config.as_deref()).await
    }

    async fn open(global: &Global, address: &Path, config: Option<&Path>) -> Result<Self, Failure> {
        let config = NodeConfig::load(None, config)?;
        let containerd =
            Containerd::connect(address, &global.namespace, &global.snapshotter).await?;
        Ok(Self { containerd, config })
    }

    /// File of a container's output.
    #[must_use]
    pub fn log(&self, id: &str) -> PathBuf {
        self.logs().join(format!("{id}.log"))
    }

    fn logs(&self) -> PathBuf {
        self.config.state_dir.join("logs").join(self.containerd.namespace())
    }

    /// Makes an empty log.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create_log(&self, id: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(self.logs())?;
        fs::write(self.log(id), "")?;
        Ok(self.log(id))
    }

    /// Removes a container and its log.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn remove(&self, id: &str) -> Result<(), Failure> {
        self.containerd.remove(id).await?;
        // A container of another client has no log here; folders stay while there are others.
        let _missing = fs::remove_file(self.log(id));
        let _others = fs::remove_dir(self.logs())
            .and_then(|()| fs::remove_dir(self.config.state_dir.join("logs")));
        Ok(())
    }

    /// The end of a container's log, for an error; empty without one.
    #[must_use]
    pub fn log_tail(&self, id: &str) -> String {
        let text = fs::read(self.log(id)).unwrap_or_default();
        let text =
            String::from_utf8_lossy(&text[text.len().saturating_sub(QUOTED_MAX)..]).into_owned();
        match text.trim() {
            "" => String::new(),
            text => format!("\nthe end of its log:\n{text}"),
        }
    }
}
