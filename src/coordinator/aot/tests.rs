//! Tests of the cache of compiled modules, with a compiler that only writes files.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::*;

/// Where the engine does not matter.
const ENGINE: Engine = Engine::Wasmtime;

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

/// Keeps what is said.
#[derive(Default)]
pub struct Lines(Mutex<Vec<String>>);

impl Progress for Lines {
    fn info(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }

    fn warn(&self, text: &str) {
        self.info(text);
    }
}

impl Lines {
    /// All of it, line by line.
    pub fn text(self) -> String {
        self.0.into_inner().unwrap().join("\n")
    }

    fn has(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

fn module(bytes: &[u8]) -> CheckedModule {
    CheckedModule {
        is_component: false,
        bytes: bytes.to_vec(),
        digest: hex::encode(Sha256::digest(bytes)),
        exports: Vec::new(),
        foreign: std::collections::BTreeMap::new(),
        sockets: Vec::new(),
        dropped_native: false,
        opens_files: false,
        imports_prototype: false,
    }
}

/// The inputs of a node whose engines have this version.
fn inputs(engine: Engine, version: &str) -> Fingerprint {
    Fingerprint {
        version: version.to_owned(),
        options: engine.to_string(),
        architecture: "m68k".to_owned(),
        features: "a b c".to_owned(),
    }
}

fn cache(dir: &Path, version: &str, jobs: usize) -> AotCache {
    AotCache::new(
        dir,
        |engine| inputs(engine, version),
        &CompileConfig { jobs, ..CompileConfig::default() },
    )
}

/// What is in the cache beside its locks.
fn left(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("aot")).unwrap().map(|entry| entry.unwrap().path());
    let other = |path: &PathBuf| {
        !path.ends_with("queue") && path.extension().is_none_or(|extension| extension != "lock")
    };
    entries.filter(other).collect()
}

#[tokio::test]
async fn a_module_is_compiled_once_and_again_only_when_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (one, lines) = (cache(dir.path(), "e1", 2), Lines::default());
    let compiler = Copy::new(100);
    let wasm = module(b"one");
    let (a, b) = tokio::join!(
        one.artifact(&wasm, ENGINE, "m", "t", &compiler, &lines),
        one.artifact(&wasm, ENGINE, "m", "t", &compiler, &lines)
    );
    let path = a.unwrap().path;
    assert_eq!(b.unwrap().path, path);
    assert_eq!(compiler.runs.load(Ordering::SeqCst), 1);
    assert!(lines.has("compiling m (3 bytes), first time on this node"));
    assert!(lines.has("compiled m, after"));
    fs::write(&path, b"tampered").unwrap();
    let again = one.artifact(&wasm, ENGINE, "m", "t", &compiler, &lines).await.unwrap();
    assert!(again.compiled.is_some());
    assert_eq!(fs::read(&path).unwrap(), b"one");
    let other = cache(dir.path(), "e2", 2);
    assert_ne!(
        other.artifact(&wasm, ENGINE, "m", "t", &compiler, &lines).await.unwrap().path,
        path
    );
}

#[tokio::test]
async fn each_engine_has_entries_of_its_own_and_all_count() {
    let dir = tempfile::tempdir().unwrap();
    let limits = CompileConfig { cache_max: 10, ..CompileConfig::default() };
    let cache = AotCache::new(dir.path(), |engine| inputs(engine, "1"), &limits);
    let (compiler, lines, wasm) = (Copy::new(2), Lines::default(), module(b"1234567890"));
    let mut before = None;
    for engine in Engine::ALL {
        let made = cache.artifact(&wasm, engine, "m", "t", &compiler, &lines).await.unwrap();
        assert!(made.compiled.is_some(), "{engine}");
        assert_eq!(made.path.extension().unwrap(), engine.native_extension());
        let lock = made.path.with_extension("lock");
        assert!(lock.exists(), "an entry keeps its lock file");
        before = before.or(Some(made.path.clone())).filter(|path| path.exists());
    }
    assert_eq!(before, None, "the other engine's entry made room");
}

#[tokio::test]
async fn a_failed_compilation_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, lines) = (cache(dir.path(), "e", 1), Lines::default());
    let error = cache.artifact(&module(b"x"), ENGINE, "m", "t", &Fails, &lines).await.unwrap_err();
    assert_eq!(error.to_string(), "m cannot be compiled: killed by signal 9");
    assert!(lines.has("cannot compile m, after"));
    assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_dropped_draft_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, lines) = (cache(dir.path(), "e", 1), Lines::default());
    let (stuck, wasm) = (Copy::new(0), module(b"x"));
    let abandoned = dir.path().join("aot/.draft-other");
    fs::create_dir_all(abandoned.join("deep")).unwrap();
    let mut first = Box::pin(cache.artifact(&wasm, ENGINE, "m", "t", &stuck, &lines));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(!abandoned.exists(), "a draft without a process is removed");
    let (compiler, other) = (Copy::new(2), Lines::default());
    let mut second = Box::pin(cache.artifact(&wasm, ENGINE, "m", "t", &compiler, &other));
    tokio::time::timeout(2 * NOTICE_AFTER, &mut second).await.unwrap_err();
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
    let mut first = Box::pin(cache.artifact(&wasm, ENGINE, "m", "t", &stuck, &lines));
    assert!(futures_util::poll!(&mut first).is_pending());
    let (compiler, next) = (Copy::new(1), module(b"next"));
    let mut waiting = Box::pin(cache.artifact(&next, ENGINE, "n", "t", &compiler, &lines));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    let notice = "this node already runs its maximum of compilers (jobs = 1)";
    assert!(!lines.has(notice), "a short wait says nothing");
    tokio::time::timeout(2 * NOTICE_AFTER, &mut waiting).await.unwrap_err();
    assert!(lines.has(notice));
    drop(waiting);
    let waiting = cache.artifact(&next, ENGINE, "n", "t", &compiler, &lines);
    stuck.may.add_permits(1);
    let (first, second) = tokio::join!(first, waiting);
    assert!(first.unwrap().compiled.is_some() && second.unwrap().compiled.is_some());
}

#[tokio::test]
async fn a_module_over_a_limit_is_not_compiled() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = wat::parse_str("(module (func) (func))").unwrap();
    let limits = CompileConfig { functions: 1, ..CompileConfig::default() };
    let (cache, lines) =
        (AotCache::new(dir.path(), |engine| inputs(engine, "1"), &limits), Lines::default());
    let error =
        cache.artifact(&module(&bytes), ENGINE, "m", "t", &Fails, &lines).await.unwrap_err();
    assert!(error.to_string().contains("m is not compiled: it has functions: 2"), "{error}");
    assert!(!dir.path().join("aot").exists());
}

#[tokio::test]
async fn a_waiting_module_gives_its_turn_up() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, lines) = (cache(dir.path(), "e", 2), Lines::default());
    let (stuck, shared, other) = (Copy::new(0), module(b"shared"), module(b"other"));
    let mut first = Box::pin(cache.artifact(&shared, ENGINE, "m", "a", &stuck, &lines));
    assert!(futures_util::poll!(&mut first).is_pending());
    let compiler = Copy::new(2);
    let mut second = Box::pin(cache.artifact(&shared, ENGINE, "m", "b", &compiler, &lines));
    assert!(futures_util::poll!(&mut second).is_pending());
    let free = cache.artifact(&other, ENGINE, "o", "b", &compiler, &lines).await.unwrap();
    assert!(free.compiled.is_some(), "the second slot is not the waiting module's");
    stuck.may.add_permits(1);
    let (first, second) = tokio::join!(first, second);
    assert!(first.unwrap().compiled.is_some() && second.unwrap().compiled.is_none());
}

#[tokio::test]
async fn the_least_recently_used_entry_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let limits = CompileConfig { cache_max: 25, ..CompileConfig::default() };
    let (cache, lines) =
        (AotCache::new(dir.path(), |engine| inputs(engine, "1"), &limits), Lines::default());
    let compiler = Copy::new(100);
    let make = async |bytes: &[u8; 10]| {
        let wasm = module(bytes);
        let made = cache.artifact(&wasm, ENGINE, "m", "t", &compiler, &lines).await.unwrap();
        // Times of files are those of the last tick.
        tokio::time::sleep(Duration::from_millis(20)).await;
        made
    };
    let used = |name: &Artifact| name.path.exists();
    let (one, two) = (make(b"1111111111").await, make(b"2222222222").await);
    let (old, recent) = (one.path.clone(), two.path.clone());
    drop(one);
    assert!(make(b"1111111111").await.compiled.is_none(), "used again");
    let three = make(b"3333333333").await;
    assert!(used(&two) && used(&three), "in use, though not for the longest time unused");
    assert!(!old.exists(), "the only unused one");
    drop((two, three));
    let four = make(b"4444444444").await;
    assert!(!recent.exists() && used(&four));
    let bytes: u64 = left(dir.path())
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == ENGINE.native_extension()))
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert!(bytes <= 25, "{bytes}");
    // A start on the way finds nothing half removed.
    assert!(make(b"1111111111").await.compiled.is_some());
}
