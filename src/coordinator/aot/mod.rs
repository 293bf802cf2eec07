//! Cache of modules compiled ahead of time, the only source of native code. Runs in the shim daemon.
//!
//! An entry is `<cache>/aot/<key>.so` with `<key>.sha256`, readable by root only. The key covers module, engine,
//! processor features and compiler options. A missing or damaged entry is compiled again.
//!
//! Invariants:
//! - One process of the host compiles a key at a time (`flock`). The node's configuration bounds the number of
//!   compilers.
//! - The compiler is a process of its own, because it reads untrusted input.
//! - Dropping the future of [`AotCache::artifact`] ends its compiler. Another process that waits for the module then
//!   compiles it.

use std::fs::{self, File, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::Flock;
use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};

use super::compile_slots::{CompileSlot, LOCK_PAUSE, try_lock, try_slot};
use super::limits;
use super::module::CheckedModule;
use super::progress::{Progress, in_words};
use crate::config::CompileConfig;
use crate::wire::ids::short_hash;

mod draft;
mod error;
#[cfg(test)]
mod tests;

use draft::{Draft, lock_file};
pub use error::AotError;
use error::fail;

/// If less space in bytes is free, a failed compilation is blamed on the disk. Compiler and linker themselves report
/// only truncated files.
const ROOM_MIN: u64 = 16 * 1024 * 1024;

/// Runs the compiler in a process of its own.
pub trait CompileChild: Sync {
    /// Compiles a module file. Dropping the future ends the process and waits for it.
    ///
    /// # Errors
    /// The compiler's message, or its exit status.
    fn compile(&self, job: &CompileJob<'_>) -> impl Future<Output = Result<(), String>> + Send;
}

/// One compilation.
#[derive(Clone, Copy, Debug)]
pub struct CompileJob<'a> {
    /// The module.
    pub wasm: &'a Path,
    /// Output file for the native code.
    pub out: &'a Path,
    /// Length of the module in bytes.
    pub length: u64,
    /// Number of this compiler among the node's running ones, from 0.
    pub slot: usize,
}

/// A compiled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Native file in the cache.
    pub path: PathBuf,
    /// Duration of the compilation; `None` for a cached module.
    pub compiled: Option<Duration>,
}

/// The cache below one directory.
#[derive(Clone, Debug)]
pub struct AotCache {
    dir: PathBuf,
    fingerprint: String,
    limits: CompileConfig,
    /// Most compilers at once on this node.
    jobs: usize,
}

impl AotCache {
    /// The cache of `cache_dir`. `fingerprint` covers everything but the module that native code depends on: engine
    /// version, compiler options, processor features.
    #[must_use]
    pub fn new(cache_dir: &Path, fingerprint: &str, limits: &CompileConfig) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            dir: cache_dir.join("aot"),
            fingerprint: fingerprint.to_owned(),
            limits: limits.clone(),
            jobs: limits.jobs_for(processors),
        }
    }

    /// Returns the compiled form of `module`, from the cache or by compiling it. `origin` names the module in
    /// messages. Reads the whole file on the polling thread.
    ///
    /// # Errors
    /// When the cache cannot be written, the module exceeds a limit, or the compiler fails.
    pub async fn artifact(
        &self,
        module: &CheckedModule,
        origin: &str,
        compiler: &impl CompileChild,
        progress: &impl Progress,
    ) -> Result<Artifact, AotError> {
        let key = format!("{}-{}", &module.digest, short_hash(&[&self.fingerprint]));
        let path = self.dir.join(format!("{key}.so"));
        if Self::is_good(&path) {
            return Ok(Artifact { path, compiled: None });
        }
        let limit = |source| AotError::Limit { origin: origin.to_owned(), source };
        limits::check(&module.bytes, &self.limits).map_err(limit)?;
        self.prepare()?;
        let lock = self.lock(&key, origin, progress).await?;
        // Another process may have compiled it in the meantime.
        if Self::is_good(&path) {
            return Ok(Artifact { path, compiled: None });
        }
        let slot = self.slot(origin, progress).await?;
        let size = in_words(module.bytes.len());
        progress.info(&format!("compiling {origin} ({size}), first time on this node"));
        let started = Instant::now();
        let draft = Draft::create(&self.dir, &key)?;
        let compiled = self.compile(module, origin, &path, &draft, slot.number, compiler).await;
        let took = started.elapsed();
        let ended = if compiled.is_ok() { "compiled" } else { "cannot compile" };
        progress.info(&format!("{ended} {origin}, after {:.1} s", took.as_secs_f64()));
        compiled?;
        // Remove the draft while holding its lock.
        drop(draft);
        drop((slot, lock));
        Ok(Artifact { path, compiled: Some(took) })
    }

    fn prepare(&self) -> Result<(), AotError> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o700)))
            .map_err(fail("create", &self.dir))
    }

    /// Waits until no other process compiles this module.
    async fn lock(
        &self,
        key: &str,
        origin: &str,
        progress: &impl Progress,
    ) -> Result<Flock<File>, AotError> {
        let path = lock_file(&self.dir, key);
        let told = || {
            progress.info(&format!(
                "waiting: {origin} is being compiled for another container of this node"
            ));
        };
        wait_for(|| try_lock(&path), told).await
    }

    /// Waits until the node runs fewer compilers than `jobs`.
    async fn slot(&self, origin: &str, progress: &impl Progress) -> Result<CompileSlot, AotError> {
        let told = || {
            let jobs = self.jobs;
            progress.info(&format!(
                "waiting to compile {origin}: this node already runs its maximum of compilers (jobs = {jobs})"
            ));
        };
        wait_for(|| try_slot(&self.dir, self.jobs), told).await
    }

    async fn compile(
        &self,
        module: &CheckedModule,
        origin: &str,
        path: &Path,
        draft: &Draft,
        slot: usize,
        compiler: &impl CompileChild,
    ) -> Result<(), AotError> {
        let (wasm, out) = (draft.file("module.wasm"), draft.file("module.so"));
        fs::write(&wasm, &module.bytes).map_err(fail("write", &wasm))?;
        let length = module.bytes.len() as u64;
        let compiled = compiler.compile(&CompileJob { wasm: &wasm, out: &out, length, slot }).await;
        compiled.map_err(|message| self.not_compiled(origin, message))?;
        let sum = digest_of(&out).map_err(fail("read", &out))?;
        let sum_draft = draft.file("sum");
        fs::write(&sum_draft, sum).map_err(fail("write", &sum_draft))?;
        let sum_path = path.with_extension("sha256");
        fs::rename(&sum_draft, &sum_path).map_err(fail("rename", &sum_path))?;
        fs::rename(&out, path).map_err(fail("rename", path))
    }

    fn not_compiled(&self, origin: &str, message: String) -> AotError {
        let origin = origin.to_owned();
        match free_bytes(&self.dir) {
            Some(free) if free < ROOM_MIN => {
                AotError::Full { origin, path: self.dir.clone(), free, message }
            }
            _ => AotError::Compile { origin, message },
        }
    }

    /// True if the entry exists and matches its checksum.
    fn is_good(path: &Path) -> bool {
        let Ok(expected) = fs::read_to_string(path.with_extension("sha256")) else {
            return false;
        };
        match digest_of(path) {
            Ok(found) if found == expected => true,
            Ok(_) => {
                tracing::warn!(path = %path.display(), "damaged entry of the AOT cache, compiling again");
                false
            }
            Err(_) => false,
        }
    }
}

/// Polls until `attempt` returns a value. Calls `told` once if that takes longer than a pause.
async fn wait_for<T>(
    mut attempt: impl FnMut() -> Result<Option<T>, (PathBuf, io::Error)>,
    told: impl FnOnce(),
) -> Result<T, AotError> {
    let mut told = Some(told);
    loop {
        match attempt() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err((path, source)) => return Err(fail("lock", &path)(source)),
        }
        if let Some(told) = told.take() {
            told();
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

/// Free bytes on the file system of `dir`; `None` if unknown.
fn free_bytes(dir: &Path) -> Option<u64> {
    let found = statvfs(dir).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex::encode(hasher.finalize()))
}
