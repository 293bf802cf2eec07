//! Cache of modules compiled ahead of time: native code comes from here and nowhere else.
//!
//! `<cache>/aot/<key>.so` and `<key>.sha256` beside it, readable by root only. The key covers the module,
//! the engine, the processor's features and the compiler's options. A missing or damaged entry is compiled
//! again, never fatal; one compilation at a time per key across all processes of the host (`flock`), in a
//! process of its own, because the compiler reads untrusted input. So many compilers run at once on the host as the
//! node's configuration says. Whoever drops the future of [`AotCache::artifact`] ends its compiler, and another process
//! that waits for the same module compiles it.

use std::fs::{self, File, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::Flock;
use nix::sys::statvfs::statvfs;
use sha2::{Digest, Sha256};

use super::compile_slots::{LOCK_PAUSE, Slot, try_lock, try_slot};
use super::limits::{self, LimitExceeded};
use super::module::CheckedModule;
use super::progress::{Progress, in_words};
use crate::config::CompileConfig;
use crate::wire::ids::short_hash;

/// Free space, in bytes, below which a failed compilation is blamed on the disk: the compiler and its linker
/// see only that files of theirs are cut.
const ROOM_MIN: u64 = 16 * 1024 * 1024;

/// Name of a [`Draft`], before its key.
const DRAFT_PREFIX: &str = ".draft-";

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
    /// The module stands for too much work.
    #[error("{origin} is not compiled: {source}")]
    Limit {
        /// Where the module came from.
        origin: String,
        /// Which limit.
        #[source]
        source: LimitExceeded,
    },
    /// The compiler.
    #[error("{origin} cannot be compiled: {message}")]
    Compile {
        /// Where the module came from.
        origin: String,
        /// What the compiler says.
        message: String,
    },
    /// The compiler, for lack of room.
    #[error(
        "{origin} cannot be compiled: {path} has only {free} bytes free; make room there or set cache_dir (the compiler: {message})",
        path = path.display()
    )]
    Full {
        /// Where the module came from.
        origin: String,
        /// The cache's directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// What the compiler says.
        message: String,
    },
}

/// Runs the compiler in a process of its own.
pub trait CompileChild: Sync {
    /// Compiles a module file. Dropped, it ends the process and waits for its end.
    ///
    /// # Errors
    /// The compiler's message, or how its process ended.
    fn compile(&self, job: &CompileJob<'_>) -> impl Future<Output = Result<(), String>> + Send;
}

/// One compilation.
#[derive(Clone, Copy, Debug)]
pub struct CompileJob<'a> {
    /// The module.
    pub wasm: &'a Path,
    /// Where the native code goes.
    pub out: &'a Path,
    /// Length of the module in bytes.
    pub length: u64,
    /// Number of this compiler among those that run at once on this node, from 0.
    pub slot: usize,
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
    limits: CompileConfig,
    /// Most compilers at once on this node.
    jobs: usize,
}

impl AotCache {
    /// The cache of `cache_dir`; `fingerprint` names all that native code depends on besides its module:
    /// the engine's version, the compiler's options, the processor's features.
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

    /// The compiled form of `module`, from the cache or made now; `origin` names the module in messages. Reads all of it, on
    /// the thread that polls.
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
        // Another process may have compiled it while we waited.
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
        // The draft goes before the lock that keeps others from it.
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

    /// Waits until fewer compilers run on this node than may.
    async fn slot(&self, origin: &str, progress: &impl Progress) -> Result<Slot, AotError> {
        let told = || {
            let jobs = self.jobs;
            progress.info(&format!(
                "waiting to compile {origin}: as many compilers run on this node as may (jobs = {jobs})"
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
        let (wasm, out) = (draft.0.join("module.wasm"), draft.0.join("module.so"));
        fs::write(&wasm, &module.bytes).map_err(fail("write", &wasm))?;
        let length = module.bytes.len() as u64;
        let compiled = compiler.compile(&CompileJob { wasm: &wasm, out: &out, length, slot }).await;
        compiled.map_err(|message| self.not_compiled(origin, message))?;
        let sum = digest_of(&out).map_err(fail("read", &out))?;
        let sum_draft = draft.0.join("sum");
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

fn lock_file(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.lock"))
}

/// Polls until `attempt` has something; `told` is called once, when that takes longer.
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

/// Where a module is compiled: on the file system of the cache, because the result is renamed. Removed when dropped. Only the
/// process with the lock of its key uses it.
#[derive(Debug)]
struct Draft(PathBuf);

impl Draft {
    /// Also removes what processes that were killed left.
    fn create(cache: &Path, key: &str) -> Result<Self, AotError> {
        remove_abandoned(cache);
        let path = cache.join(format!("{DRAFT_PREFIX}{key}"));
        let draft = Self(path.clone());
        draft.remove();
        fs::create_dir(&path).map_err(fail("create", &path))?;
        Ok(draft)
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a draft of the AOT cache stays");
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes drafts whose process died: nobody holds their locks.
fn remove_abandoned(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_prefix(DRAFT_PREFIX)) else {
            continue;
        };
        if let Ok(Some(_lock)) = try_lock(&lock_file(cache, key)) {
            Draft(entry.path()).remove();
        }
    }
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
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// "Compiles" by copying, when it may.
    struct Copy {
        runs: AtomicUsize,
        may: Semaphore,
    }

    impl Copy {
        fn new(may: usize) -> Self {
            Self { runs: AtomicUsize::new(0), may: Semaphore::new(may) }
        }
    }

    impl CompileChild for Copy {
        async fn compile(&self, job: &CompileJob<'_>) -> Result<(), String> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            self.may.acquire().await.unwrap().forget();
            fs::copy(job.wasm, job.out).map(drop).map_err(|error| error.to_string())
        }
    }

    struct Fails;

    impl CompileChild for Fails {
        async fn compile(&self, _: &CompileJob<'_>) -> Result<(), String> {
            Err("killed by signal 9".to_owned())
        }
    }

    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    impl Progress for Lines {
        fn info(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }

        fn warn(&self, text: &str) {
            self.info(text);
        }
    }

    impl Lines {
        fn has(&self, part: &str) -> bool {
            self.0.lock().unwrap().iter().any(|line| line.contains(part))
        }
    }

    fn module(bytes: &[u8]) -> CheckedModule {
        CheckedModule {
            bytes: bytes.to_vec(),
            digest: hex::encode(Sha256::digest(bytes)),
            exports: Vec::new(),
            foreign: std::collections::BTreeMap::new(),
            sockets: Vec::new(),
            dropped_native: false,
            opens_files: false,
        }
    }

    fn cache(dir: &Path, fingerprint: &str, jobs: usize) -> AotCache {
        AotCache::new(dir, fingerprint, &CompileConfig { jobs, ..CompileConfig::default() })
    }

    /// What is in the cache beside its locks.
    fn left(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir.join("aot")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_none_or(|e| e != "lock")).collect()
    }

    #[tokio::test]
    async fn a_module_is_compiled_once_and_again_only_when_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let (one, lines) = (cache(dir.path(), "e1", 2), Lines::default());
        let compiler = Copy::new(100);
        let wasm = module(b"one");
        let (a, b) = tokio::join!(
            one.artifact(&wasm, "m", &compiler, &lines),
            one.artifact(&wasm, "m", &compiler, &lines)
        );
        let path = a.unwrap().path;
        assert_eq!(b.unwrap().path, path);
        assert_eq!(compiler.runs.load(Ordering::SeqCst), 1);
        assert!(lines.has("compiling m (3 bytes), first time on this node"));
        assert!(lines.has("compiled m, after"));
        fs::write(&path, b"tampered").unwrap();
        let again = one.artifact(&wasm, "m", &compiler, &lines).await.unwrap();
        assert!(again.compiled.is_some());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let other = cache(dir.path(), "e2", 2);
        assert_ne!(other.artifact(&wasm, "m", &compiler, &lines).await.unwrap().path, path);
    }

    #[tokio::test]
    async fn a_failed_compilation_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, lines) = (cache(dir.path(), "e", 1), Lines::default());
        let error = cache.artifact(&module(b"x"), "m", &Fails, &lines).await.unwrap_err();
        assert_eq!(error.to_string(), "m cannot be compiled: killed by signal 9");
        assert!(lines.has("cannot compile m, after"));
        assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn dropping_it_leaves_nothing_and_lets_the_next_one_compile() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, lines) = (cache(dir.path(), "e", 1), Lines::default());
        let (stuck, wasm) = (Copy::new(0), module(b"x"));
        let abandoned = dir.path().join("aot/.draft-other");
        fs::create_dir_all(abandoned.join("deep")).unwrap();
        let mut first = Box::pin(cache.artifact(&wasm, "m", &stuck, &lines));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(!abandoned.exists(), "a draft without a process is removed");
        let (compiler, other) = (Copy::new(2), Lines::default());
        let mut second = Box::pin(cache.artifact(&wasm, "m", &compiler, &other));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(other.has("being compiled for another container"));
        assert_eq!(left(dir.path()).len(), 1);
        drop(first);
        assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
        assert!(second.await.unwrap().compiled.is_some());
    }

    #[tokio::test]
    async fn modules_wait_for_a_slot_and_a_wait_can_be_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, lines) = (cache(dir.path(), "e", 1), Lines::default());
        let (stuck, wasm) = (Copy::new(0), module(b"first"));
        let mut first = Box::pin(cache.artifact(&wasm, "m", &stuck, &lines));
        assert!(futures_util::poll!(&mut first).is_pending());
        let (compiler, next) = (Copy::new(1), module(b"next"));
        let mut waiting = Box::pin(cache.artifact(&next, "n", &compiler, &lines));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(lines.has("as many compilers run on this node as may (jobs = 1)"));
        drop(waiting);
        let waiting = cache.artifact(&next, "n", &compiler, &lines);
        stuck.may.add_permits(1);
        let (first, second) = tokio::join!(first, waiting);
        assert!(first.unwrap().compiled.is_some() && second.unwrap().compiled.is_some());
    }

    #[tokio::test]
    async fn a_module_over_a_limit_is_not_compiled() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = wat::parse_str("(module (func) (func))").unwrap();
        let limits = CompileConfig { functions: 1, ..CompileConfig::default() };
        let (cache, lines) = (AotCache::new(dir.path(), "e", &limits), Lines::default());
        let error = cache.artifact(&module(&bytes), "m", &Fails, &lines).await.unwrap_err();
        assert!(error.to_string().contains("m is not compiled: it has functions: 2"), "{error}");
        assert!(!dir.path().join("aot").exists());
    }
}
