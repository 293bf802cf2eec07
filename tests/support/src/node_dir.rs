//! The folder of one node in a test bed: its configuration, its state, the FIFOs of `ctr` and temporary files.
//!
//! A fixture's own folder is one. Scenes that share a containerd have one each, below it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{engines, paths};

/// Paths in the folder.
#[derive(Clone, Debug)]
pub struct NodeDir(PathBuf);

impl NodeDir {
    /// The node whose folder is there.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Makes what a node needs in the folder, and the folder if it is missing.
    ///
    /// # Errors
    /// When it is not writable.
    pub fn create(path: PathBuf) -> Result<Self> {
        let node = Self(path);
        for folder in [node.temporary(), node.fifos()] {
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        node.configure("");
        Ok(node)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.0.join("cwasi.toml")
    }

    /// CWASI's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("cwasi")
    }

    /// `TMPDIR` of `ctr`. That of containerd and the shims is the fixture's.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// Directory of `ctr`'s FIFOs.
    #[must_use]
    pub fn fifos(&self) -> PathBuf {
        self.0.join("fifo")
    }

    /// Removes the FIFOs that `ctr` leaves when it does not see the end of its task: with any runtime.
    pub fn remove_fifos(&self) {
        for fifos in fs::read_dir(self.fifos()).into_iter().flatten().flatten() {
            // `ctr` may remove them meanwhile.
            let _gone = fs::remove_dir_all(fifos.path());
        }
    }

    /// Writes the configuration: the state, the tests' cache, the engine of this run ([`engines::VARIABLE`]), and
    /// `more` lines. Shims that start from now on read it.
    ///
    /// # Panics
    /// When the folder is not writable.
    pub fn configure(&self, more: &str) {
        let (engine, cache) = (engines::tested(), paths::aot_cache());
        self.write_config(&format!("engine = \"{engine}\"\ncache_dir = {cache:?}\n{more}"));
    }

    /// Writes a configuration that names the state, and has otherwise only these lines.
    ///
    /// # Panics
    /// When the folder is not writable.
    pub fn write_config(&self, lines: &str) {
        let text = format!("state_dir = {:?}\n{lines}\n", self.state());
        fs::write(self.config(), text).expect("a node's folder is writable");
    }
}
