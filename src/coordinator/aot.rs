//! Cache of modules compiled ahead of time: native code comes from here and nowhere else.
//!
//! `<cache>/aot/<key>.so` and `<key>.sha256` beside it, readable by root only. The key covers the module,
//! the engine, the processor's features and the compiler's options. A missing or damaged entry is compiled
//! again, never fatal; one compilation at a time per key across all processes of the host (`flock`), in a
//! process of its own, because the compiler reads untrusted input.

use std::fs::{self, File, OpenOptions, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};

use super::module::CheckedModule;
use crate::wire::ids::short_hash;

/// Free space, in bytes, below which a failed compilation is blamed on the disk: the compiler and its linker
/// see only that files of theirs are cut.
const ROOM_MIN: u64 = 16 * 1024 * 1024;

/// The cache cannot give a compiled module.
#[derive(Debug, thiserror::Error)]
pub enum AotError {
    /// The cache directory or one of its files.
    #[error("AOT cache: {operation} {path}: {source}", path = path.display())]
    Cache {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The compiler.
    #[error("module {digest} cannot be compiled: {message}")]
    Compile {
        /// sha256 of the module.
        digest: String,
        /// What the compiler says.
        message: String,
    },
    /// The compiler, for lack of room.
    #[error(
        "module {digest} cannot be compiled: {path} has only {free} bytes free; make room there or set cache_dir (the compiler: {message})",
        path = path.display()
    )]
    Full {
        /// sha256 of the module.
        digest: String,
        /// The cache's directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// What the compiler says.
        message: String,
    },
    /// A background thread died; a bug of ours.
    #[error("AOT cache: the thread that waits for the lock died: {source}")]
    Thread {
        /// How.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// Runs the compiler in a process of its own.
pub trait CompileChild: Sync {
    /// Compiles the module file `wasm` into the native file `out`.
    ///
    /// # Errors
    /// The compiler's message, or how its process ended.
    fn compile(&self, wasm: &Path, out: &Path) -> impl Future<Output = Result<(), String>> + Send;
}

/// A compiled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Native file in the cache.
    pub path: PathBuf,
    /// How long compiling took; `None` when it was there.
    pub compiled: Option<Duration>,
}

/// The cache below one directory.
#[derive(Clone, Debug)]
pub struct AotCache {
    dir: PathBuf,
    fingerprint: String,
}

impl AotCache {
    /// The cache of `cache_dir`; `fingerprint` names all that native code depends on besides its module:
    /// the engine's version, the compiler's options, the processor's features.
    #[must_use]
    pub fn new(cache_dir: &Path, fingerprint: &str) -> Self {
        Self { dir: cache_dir.join("aot"), fingerprint: fingerprint.to_owned() }
    }

    /// The compiled form of `module`, from the cache or made now. Reads all of it, on the thread that polls.
    ///
    /// # Errors
    /// When the cache cannot be written or the compiler fails.
    pub async fn artifact(
        &self,
        module: &CheckedModule,
        compiler: &impl CompileChild,
    ) -> Result<Artifact, AotError> {
        let key = format!("{}-{}", &module.digest, short_hash(&[&self.fingerprint]));
        let path = self.dir.join(format!("{key}.so"));
        if Self::is_good(&path) {
            return Ok(Artifact { path, compiled: None });
        }
        self.prepare()?;
        let lock = self.lock(&key).await?;
        // Another process may have compiled it while we waited.
        if Self::is_good(&path) {
            return Ok(Artifact { path, compiled: None });
        }
        let started = Instant::now();
        self.compile(module, &path, compiler).await?;
        drop(lock);
        Ok(Artifact { path, compiled: Some(started.elapsed()) })
    }

    fn prepare(&self) -> Result<(), AotError> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o700)))
            .map_err(fail("create", &self.dir))
    }

    async fn lock(&self, key: &str) -> Result<Flock<File>, AotError> {
        let path = self.dir.join(format!("{key}.lock"));
        blocking(move || {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(fail("open", &path))?;
            Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, errno)| fail("lock", &path)(errno.into()))
        })
        .await
    }

    async fn compile(
        &self,
        module: &CheckedModule,
        path: &Path,
        compiler: &impl CompileChild,
    ) -> Result<(), AotError> {
        // Dropped, and so removed, whatever happens; on the same file system as the cache for the rename.
        let draft = tempfile::Builder::new()
            .prefix(".draft-")
            .tempdir_in(&self.dir)
            .map_err(fail("create", &self.dir))?;
        let (wasm, out) = (draft.path().join("module.wasm"), draft.path().join("module.so"));
        fs::write(&wasm, &module.bytes).map_err(fail("write", &wasm))?;
        let compiled = compiler.compile(&wasm, &out).await;
        compiled.map_err(|message| self.not_compiled(&module.digest, message))?;
        let sum = digest_of(&out).map_err(fail("read", &out))?;
        let sum_draft = draft.path().join("sum");
        fs::write(&sum_draft, sum).map_err(fail("write", &sum_draft))?;
        let sum_path = path.with_extension("sha256");
        fs::rename(&sum_draft, &sum_path).map_err(fail("rename", &sum_path))?;
        fs::rename(&out, path).map_err(fail("rename", path))
    }

    fn not_compiled(&self, digest: &str, message: String) -> AotError {
        let digest = digest.to_owned();
        match free_bytes(&self.dir) {
            Some(free) if free < ROOM_MIN => {
                AotError::Full { digest, path: self.dir.clone(), free, message }
            }
            _ => AotError::Compile { digest, message },
        }
    }

    /// True when the entry is there and its bytes are those that we wrote.
    fn is_good(path: &Path) -> bool {
        let Ok(expected) = fs::read_to_string(path.with_extension("sha256")) else {
            return false;
        };
        match digest_of(path) {
            Ok(found) if found == expected => true,
            Ok(_) => {
                tracing::warn!(path = %path.display(), "damaged entry of the AOT cache is compiled again");
                false
            }
            Err(_) => false,
        }
    }
}

fn fail(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AotError + use<> {
    let path = path.to_owned();
    move |source| AotError::Cache { operation, path, source }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AotError> + Send + 'static,
) -> Result<T, AotError> {
    tokio::task::spawn_blocking(work).await.map_err(|source| AotError::Thread { source })?
}

/// Room on the file system of `dir` in bytes; `None` when it cannot be told.
fn free_bytes(dir: &Path) -> Option<u64> {
    let found = statvfs(dir).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hex::encode(hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Copy {
        runs: AtomicUsize,
    }

    impl CompileChild for Copy {
        async fn compile(&self, wasm: &Path, out: &Path) -> Result<(), String> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            fs::copy(wasm, out).map(drop).map_err(|error| error.to_string())
        }
    }

    fn module(bytes: &[u8]) -> CheckedModule {
        CheckedModule {
            bytes: bytes.to_vec(),
            digest: hex::encode(Sha256::digest(bytes)),
            exports: Vec::new(),
            foreign: std::collections::BTreeMap::new(),
            dropped_native: false,
        }
    }

    #[tokio::test]
    async fn a_module_is_compiled_once_and_again_only_when_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = AotCache::new(dir.path(), "e1");
        let compiler = Copy { runs: AtomicUsize::new(0) };
        let wasm = module(b"one");
        let (a, b) =
            tokio::join!(cache.artifact(&wasm, &compiler), cache.artifact(&wasm, &compiler));
        let path = a.unwrap().path;
        assert_eq!(b.unwrap().path, path);
        assert_eq!(compiler.runs.load(Ordering::SeqCst), 1);
        fs::write(&path, b"tampered").unwrap();
        assert!(cache.artifact(&wasm, &compiler).await.unwrap().compiled.is_some());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let other = AotCache::new(dir.path(), "e2");
        assert_ne!(other.artifact(&wasm, &compiler).await.unwrap().path, path);
    }

    struct Fails;

    impl CompileChild for Fails {
        async fn compile(&self, _: &Path, _: &Path) -> Result<(), String> {
            Err("killed by signal 9".to_owned())
        }
    }

    #[tokio::test]
    async fn a_failed_compilation_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = AotCache::new(dir.path(), "e");
        let error = cache.artifact(&module(b"x"), &Fails).await.unwrap_err().to_string();
        assert!(error.contains("killed by signal 9"));
        let left: Vec<_> =
            fs::read_dir(dir.path().join("aot")).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.iter().all(|path| path.extension().is_some_and(|e| e == "lock")), "{left:?}");
    }
}
