//! Code that was compiled elsewhere, as entries of the cache. Runs in the shim daemon.
//!
//! Invariant: an entry of a signer appears only after its bytes were compared with the digest that a [`Verified`]
//! statement names, as they are in the cache's own file. Nothing maps a file before that.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};

use super::draft::{Draft, lock_file};
use super::error::fail;
use super::eviction::{self, EntryInUse};
use super::{AotCache, AotError, Artifact};
use crate::compile_slots::{LOCK_PAUSE, try_lock};
use crate::precompiled::{PrecompiledError, TrustedKeys, Verified, verify};
use cwasi_config::Engine;
use cwasi_wire::ids::short_hash;

/// Part of the keys of entries that others have signed.
const SIGNED: &str = "signed by";

/// Verified code is not taken into the cache.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    Refused(#[from] PrecompiledError),
    #[error("it cannot be stored: {0}")]
    Cache(#[from] AotError),
}

impl AotCache {
    /// The keys that the configuration names, as their files are now.
    #[must_use]
    pub fn trusted_keys(&self) -> TrustedKeys {
        TrustedKeys::read(&self.limits.trusted_keys)
    }

    /// Whether the configuration names keys.
    #[must_use]
    pub fn trusts_others(&self) -> bool {
        !self.limits.trusted_keys.is_empty()
    }

    /// True if an entry has the module of this digest: it was valid when it was compiled. The entry may be damaged.
    #[must_use]
    pub fn has(&self, module: &str, keys: &TrustedKeys) -> bool {
        Engine::ALL.into_iter().any(|engine| {
            let signed = keys.ids().map(|key| self.signed_entry(module, engine, key).1);
            std::iter::once(self.entry(module, engine).1).chain(signed).any(|path| path.exists())
        })
    }

    /// The module's entry: the node's own, or that of a signer that it trusts; `None` if there is none.
    #[must_use]
    pub fn find(&self, module: &str, engine: Engine, keys: &TrustedKeys) -> Option<Artifact> {
        let own = self.entry(module, engine).1;
        let signed = keys.ids().map(|key| self.signed_entry(module, engine, key).1);
        std::iter::once(own).chain(signed).find_map(found)
    }

    /// Checks a signature that came with a module.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(
        &self,
        signature: &[u8],
        keys: &TrustedKeys,
        module: (&str, Engine),
    ) -> Result<Verified, PrecompiledError> {
        verify(signature, keys, module, &self.fingerprints[&module.1])
    }

    /// Makes an entry of signed code. Reads and writes the whole file on the polling thread.
    ///
    /// # Errors
    /// When `code` is not what was signed, or cannot be written.
    pub async fn place(
        &self,
        verified: &Verified,
        (module, engine): (&str, Engine),
        code: &[u8],
    ) -> Result<Artifact, PlaceError> {
        self.prepare()?;
        let (key, path) = self.signed_entry(module, engine, verified.key());
        // Another process that takes the same code is done in a moment.
        let _lock = loop {
            if let Some(artifact) = found(path.clone()) {
                return Ok(artifact);
            }
            let failed = |(path, source): (PathBuf, io::Error)| fail("lock", &path)(source);
            if let Some(lock) = try_lock(&lock_file(&self.dir, &key)).map_err(failed)? {
                break lock;
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        };
        let draft = Draft::create(&self.dir, &key)?;
        let in_use = publish(&draft, &path, verified, code)?;
        drop(draft);
        if self.limits.cache_max > 0 {
            eviction::evict(&self.dir, self.limits.cache_max);
        }
        Ok(Artifact { path, compiled: None, in_use: Arc::new(in_use) })
    }

    fn signed_entry(&self, module: &str, engine: Engine, signer: &str) -> (String, PathBuf) {
        let fingerprint = self.fingerprints[&engine].to_string();
        let key = format!("{module}-{}", short_hash(&[&fingerprint, SIGNED, signer]));
        let path = self.path(&key, engine);
        (key, path)
    }
}

fn found(path: PathBuf) -> Option<Artifact> {
    let in_use = Arc::new(eviction::take(&path)?);
    Some(Artifact { path, compiled: None, in_use })
}

/// Writes the code into the cache's own file, compares what is in the file with what was signed, and gives it its name.
fn publish(
    draft: &Draft,
    path: &Path,
    verified: &Verified,
    code: &[u8],
) -> Result<EntryInUse, PlaceError> {
    let (copy, sum) = (draft.file("code"), draft.file("sum"));
    fs::write(&copy, code).map_err(fail("write", &copy))?;
    let file = File::open(&copy).map_err(fail("read", &copy))?;
    let locked = Flock::lock(file, FlockArg::LockSharedNonblock);
    let file = locked.map_err(|(_, errno)| fail("lock", &copy)(errno.into()))?;
    let digest = eviction::digest_of(&*file).map_err(fail("read", &copy))?;
    if digest != verified.code() || code.len() as u64 != verified.length() {
        return Err(PrecompiledError::Damaged.into());
    }
    fs::write(&sum, digest).map_err(fail("write", &sum))?;
    let sum_path = path.with_extension("sha256");
    fs::rename(&sum, &sum_path).map_err(fail("rename", &sum_path))?;
    fs::rename(&copy, path).map_err(fail("rename", path))?;
    Ok(EntryInUse::of(file))
}
