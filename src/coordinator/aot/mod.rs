//! Cache of modules compiled ahead of time, the only source of native code. Runs in the shim daemon.
//!
//! An entry is `<cache>/aot/<key>.so` of WasmEdge or `<key>.cwasm` of wasmtime, with `<key>.sha256`, readable by root
//! only. The key covers module, engine, processor features and compiler options. A missing or damaged entry is compiled
//! again. Code that was compiled elsewhere (`placement`) has entries of its own, whose key also covers the signer's: when
//! the node trusts a key no more, nothing looks for them.
//!
//! Invariants:
//! - One process of the host compiles a key at a time (`flock`). The node's configuration bounds the number of
//!   compilers, and the bytes of all entries. Tenants compile in turn ([`super::compile_queue`]).
//! - The compiler is a process of its own, because it reads untrusted input.
//! - Dropping the future of [`AotCache::artifact`] ends its compiler. Another process that waits for the module then
//!   compiles it.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::Flock;
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

use super::compile_queue::{self, CompileQueue};
use super::compile_slots::{CompileSlot, LOCK_PAUSE, try_lock};
use super::fingerprint::Fingerprint;
use super::limits;
use super::module::CheckedModule;
use super::progress::{Progress, in_words};
use cwasi_config::{CompileConfig, Engine};
use cwasi_wire::ids::short_hash;

mod draft;
mod error;
mod eviction;
mod placement;
#[cfg(test)]
pub mod tests;

use draft::{Draft, is_being_compiled, lock_file};
pub use error::AotError;
use error::fail;
pub use eviction::EntryInUse;
pub use placement::PlaceError;

/// If less space in bytes is free, a failed compilation is blamed on the disk. Compiler and linker themselves report
/// only truncated files.
const ROOM_MIN: u64 = 16 * 1024 * 1024;
/// A start that waits for less says nothing: a compiler that has just ended, whose lock a process that was forked
/// meanwhile still holds.
const NOTICE_AFTER: Duration = Duration::from_millis(200);

/// Runs the compiler in a process of its own.
pub trait CompileChild: Sync {
    /// Compiles a module file. Dropping the future ends the process and waits for it.
    ///
    /// # Errors
    /// The compiler's message, or its exit status.
    fn compile(&self, job: &CompileJob<'_>) -> impl Future<Output = Result<(), String>> + Send;

    /// Whether functions of the engine can run here. The compiler may be missing if the cache has what they need.
    ///
    /// # Errors
    /// The missing program, for the user.
    fn check_engine(&self, engine: Engine) -> Result<(), String> {
        let _runs = engine;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CompileJob<'a> {
    /// Engine that will run the native code.
    pub engine: Engine,
    pub wasm: &'a Path,
    /// Output file for the native code.
    pub out: &'a Path,
    /// Length of the module in bytes.
    pub length: u64,
    /// Number of this compiler among the node's running ones, from 0.
    pub slot: usize,
}

#[derive(Clone, Debug)]
pub struct Artifact {
    /// Native file in the cache.
    pub path: PathBuf,
    /// Duration of the compilation; `None` for a cached module.
    pub compiled: Option<Duration>,
    /// Keeps the file in the cache, until it is loaded.
    pub in_use: Arc<EntryInUse>,
}

/// The cache below one directory.
#[derive(Clone, Debug)]
pub struct AotCache {
    dir: PathBuf,
    /// Of each engine.
    fingerprints: BTreeMap<Engine, Fingerprint>,
    limits: CompileConfig,
    queue: Arc<CompileQueue>,
}

impl AotCache {
    /// The cache of `cache_dir`. An engine's `fingerprint` covers everything but the module that native code depends on:
    /// engine version, compiler options, processor features.
    #[must_use]
    pub fn new(
        cache_dir: &Path,
        fingerprint: impl Fn(Engine) -> Fingerprint,
        limits: &CompileConfig,
    ) -> Self {
        let fingerprints = Engine::ALL.map(|engine| (engine, fingerprint(engine))).into();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let dir = cache_dir.join("aot");
        let queue = Arc::new(CompileQueue::new(&dir, limits.jobs_for(processors)));
        Self { dir, fingerprints, limits: limits.clone(), queue }
    }

    /// Returns `module` compiled for `engine`, from the cache or by compiling it. `origin` names the module in
    /// messages. Tenants, such as namespaces, compile in turn. Reads the whole file on the polling thread.
    ///
    /// # Errors
    /// When the cache cannot be written, the module exceeds a limit, or the compiler fails.
    pub async fn artifact(
        &self,
        module: &CheckedModule,
        engine: Engine,
        origin: &str,
        tenant: &str,
        compiler: &impl CompileChild,
        progress: &impl Progress,
    ) -> Result<Artifact, AotError> {
        let (key, path) = self.entry(&module.digest, engine);
        let cached =
            |in_use| Artifact { path: path.clone(), compiled: None, in_use: Arc::new(in_use) };
        if let Some(in_use) = eviction::take(&path) {
            return Ok(cached(in_use));
        }
        if !self.limits.enabled {
            return Err(AotError::NeverCompiles { origin: origin.to_owned() });
        }
        let limit = |source| AotError::Limit { origin: origin.to_owned(), source };
        limits::check(&module.bytes, &self.limits).map_err(limit)?;
        self.prepare()?;
        let (lock, slot) = match self.turn(&key, &path, tenant, origin, progress).await? {
            Turn::Compiled(in_use) => return Ok(cached(in_use)),
            Turn::Compile { lock, slot } => (lock, slot),
        };
        let size = in_words(module.bytes.len());
        progress.info(&format!("compiling {origin} ({size}), first time on this node"));
        let started = Instant::now();
        let draft = Draft::create(&self.dir, &key)?;
        let job = Job { module, engine, origin, slot: slot.number };
        let compiled = self.compile(&job, &path, &draft, compiler).await;
        let took = started.elapsed();
        let ended = if compiled.is_ok() { "compiled" } else { "cannot compile" };
        progress.info(&format!("{ended} {origin}, after {:.1} s", took.as_secs_f64()));
        let in_use = Arc::new(compiled?);
        // Remove the draft while holding its lock.
        drop(draft);
        drop((slot, lock));
        if self.limits.cache_max > 0 {
            eviction::evict(&self.dir, self.limits.cache_max);
        }
        Ok(Artifact { path, compiled: Some(took), in_use })
    }

    /// Key and path of the module's entry that this node compiles.
    fn entry(&self, digest: &str, engine: Engine) -> (String, PathBuf) {
        let fingerprint = self.fingerprints[&engine].to_string();
        let key = format!("{digest}-{}", short_hash(&[&fingerprint]));
        let path = self.path(&key, engine);
        (key, path)
    }

    fn path(&self, key: &str, engine: Engine) -> PathBuf {
        self.dir.join(format!("{key}.{}", engine.native_extension()))
    }

    fn prepare(&self) -> Result<(), AotError> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o700)))
            .map_err(fail("create", &self.dir))?;
        let owner = fs::metadata(&self.dir).map_err(fail("read", &self.dir))?.uid();
        if owner != geteuid().as_raw() {
            return Err(AotError::Owner { path: self.dir.clone(), owner });
        }
        let queue = |(path, source): (PathBuf, io::Error)| fail("create", &path)(source);
        self.queue.prepare().map_err(queue)
    }

    /// Waits for this module's turn, or until another process has compiled it.
    async fn turn(
        &self,
        key: &str,
        path: &Path,
        tenant: &str,
        origin: &str,
        progress: &impl Progress,
    ) -> Result<Turn, AotError> {
        let failed = |(path, source): (PathBuf, io::Error)| fail("lock", &path)(source);
        let lock = lock_file(&self.dir, key);
        let (since, mut ticket) = (compile_queue::now(), None);
        let mut notice = WaitNotice::new();
        loop {
            if let Some(in_use) = eviction::take(path) {
                return Ok(Turn::Compiled(in_use));
            }
            if is_being_compiled(&self.dir, key).map_err(failed)? {
                // Its place is the others' meanwhile.
                ticket = None;
                notice.once(progress, || {
                    format!(
                        "waiting: {origin} is being compiled for another container of this node"
                    )
                });
            } else {
                let place = match ticket.take() {
                    Some(place) => place,
                    None => self.queue.enter(tenant, since).map_err(failed)?,
                };
                let turn = self.queue.try_turn(&place, || try_lock(&lock)).map_err(failed)?;
                if let Some((slot, lock)) = turn {
                    return Ok(Turn::Compile { lock, slot });
                }
                ticket = Some(place);
                notice.once(progress, || {
                    let jobs = self.queue.jobs();
                    format!(
                        "waiting to compile {origin}: this node already runs its maximum of compilers (jobs = {jobs})"
                    )
                });
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }

    async fn compile(
        &self,
        job: &Job<'_>,
        path: &Path,
        draft: &Draft,
        compiler: &impl CompileChild,
    ) -> Result<EntryInUse, AotError> {
        let &Job { module, engine, origin, slot } = job;
        let native = format!("module.{}", engine.native_extension());
        let (wasm, out) = (draft.file("module.wasm"), draft.file(&native));
        fs::write(&wasm, &module.bytes).map_err(fail("write", &wasm))?;
        let length = module.bytes.len() as u64;
        let job = CompileJob { engine, wasm: &wasm, out: &out, length, slot };
        compiler.compile(&job).await.map_err(|message| self.not_compiled(origin, message))?;
        let sum = File::open(&out).and_then(eviction::digest_of).map_err(fail("read", &out))?;
        let sum_draft = draft.file("sum");
        fs::write(&sum_draft, sum).map_err(fail("write", &sum_draft))?;
        let sum_path = path.with_extension("sha256");
        fs::rename(&sum_draft, &sum_path).map_err(fail("rename", &sum_path))?;
        fs::rename(&out, path).map_err(fail("rename", path))?;
        let gone = || fail("read", path)(io::Error::from(io::ErrorKind::NotFound));
        eviction::take(path).ok_or_else(gone)
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
}

/// A module whose turn it is.
#[derive(Clone, Copy)]
struct Job<'a> {
    module: &'a CheckedModule,
    engine: Engine,
    origin: &'a str,
    /// Number of the compiler among the node's running ones.
    slot: usize,
}

/// What [`AotCache::turn`] waited for.
enum Turn {
    /// Another process has compiled the module.
    Compiled(EntryInUse),
    /// This process compiles it.
    Compile { lock: Flock<File>, slot: CompileSlot },
}

/// Tells the user once why a start waits, if it waits for longer than [`NOTICE_AFTER`].
struct WaitNotice {
    since: Instant,
    said: bool,
}

impl WaitNotice {
    fn new() -> Self {
        Self { since: Instant::now(), said: false }
    }

    fn once(&mut self, progress: &impl Progress, text: impl FnOnce() -> String) {
        if !self.said && self.since.elapsed() >= NOTICE_AFTER {
            self.said = true;
            progress.info(&text());
        }
    }
}

/// Free bytes on the file system of `dir`; `None` if unknown.
fn free_bytes(dir: &Path) -> Option<u64> {
    let found = statvfs(dir).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}
