//! Precompiled code beside a module: taken when all is as it was signed, and otherwise compiled anew, with the reason.

use sha2::{Digest as _, Sha256};

use super::super::aot::AotError;
use super::super::aot::tests::Lines;
use super::super::fingerprint::{Fingerprint, fingerprint};
use super::super::precompiled::tests::key_files;
use super::super::precompiled::{SigningKey, Statement, sign};
use super::tests::{Copy, node, request, spec_of};
use super::*;
use cwasi_config::CompileConfig;

const MODULE: &str = r#"(module (func (export "_start")))"#;
/// "Native code": the fake compiler makes other bytes.
const CODE: &[u8] = b"signed native code";
const ENGINE: Engine = Engine::Wasmtime;

/// A node, and the root file system of a container.
struct Fixture {
    dir: tempfile::TempDir,
    key: SigningKey,
    public: String,
    config: CompileConfig,
    delivery: Option<Delivery>,
}

/// What a start gave.
struct Start {
    plan: Result<Plan, PlanError>,
    compiled: usize,
    lines: String,
}

impl Start {
    /// The bytes that the sandbox loads.
    fn code(&self) -> Vec<u8> {
        let plan = self.plan.as_ref().unwrap();
        let Workload::Function(launch) = &plan.workload else { panic!("no function") };
        std::fs::read(&launch.artifact).unwrap()
    }
}

fn module() -> Vec<u8> {
    wat::parse_str(MODULE).unwrap()
}

fn statement() -> Statement {
    let Fingerprint { version, options, architecture, .. } = fingerprint(ENGINE);
    Statement {
        module: hex::encode(Sha256::digest(module())),
        engine: ENGINE,
        version,
        options,
        architecture,
        features: Vec::new(),
        code: hex::encode(Sha256::digest(CODE)),
        length: CODE.len() as u64,
    }
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("rootfs")).unwrap();
        let (private, public) = key_files(dir.path(), 1);
        let key = SigningKey::read(&private).unwrap();
        let trusted_keys = vec![public.clone()];
        let config = CompileConfig { trusted_keys, ..CompileConfig::default() };
        let fixture = Self { dir, key, public, config, delivery: None };
        fixture.write("m.wasm", &module());
        fixture
    }

    /// With code and signature beside the module.
    fn signed(statement: &Statement) -> Self {
        let fixture = Self::new();
        fixture.write("m.cwasm", CODE);
        fixture.write("m.cwasm.sig", &sign(&fixture.key, statement));
        fixture
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.dir.path().join("rootfs").join(name), bytes).unwrap();
    }

    async fn start(&self) -> Start {
        let (rootfs, cache) = (self.dir.path().join("rootfs"), self.dir.path().join("cache"));
        let cache = AotCache::new(&cache, fingerprint, &self.config);
        let coordinator = node(cache, ENGINE, Copy::default());
        let spec = spec_of(&serde_json::Map::new());
        let request = PlanRequest { delivery: self.delivery.as_ref(), ..request(&spec, &rootfs) };
        let lines = Lines::default();
        let plan = coordinator.plan(&request, &lines).await;
        let compiled = coordinator.compiler.compiled().len();
        Start { plan, compiled, lines: lines.text() }
    }
}

#[tokio::test]
async fn signed_code_is_taken_once_and_compiled_never() {
    let fixture = Fixture::signed(&statement());
    let start = fixture.start().await;
    assert_eq!((start.code().as_slice(), start.compiled), (CODE, 0), "{}", start.lines);
    assert!(start.lines.contains("has trusted native code: /m.cwasm"), "{}", start.lines);
    // The second time it is an entry of the cache, whatever is beside the module.
    fixture.write("m.cwasm.sig", b"other");
    let again = fixture.start().await;
    assert_eq!((again.code().as_slice(), again.lines.as_str()), (CODE, ""));
}

#[tokio::test]
async fn whatever_is_wrong_with_it_it_is_compiled_anew_and_that_is_said() {
    let with = |change: fn(&mut Statement)| {
        let mut changed = statement();
        change(&mut changed);
        Fixture::signed(&changed)
    };
    let damaged = |name: &str, change: fn(&mut Vec<u8>)| {
        let fixture = Fixture::signed(&statement());
        let path = fixture.dir.path().join("rootfs").join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
        fixture
    };
    let mut revoked = Fixture::signed(&statement());
    revoked.config.trusted_keys = vec![key_files(revoked.dir.path(), 2).1];
    for (fixture, part) in [
        (damaged("m.cwasm", |code| code[3] ^= 1), "it is damaged"),
        (damaged("m.cwasm", |code| code.truncate(5)), "it is damaged"),
        (damaged("m.cwasm", |code| code.push(0)), "it is damaged"),
        (damaged("m.cwasm", Vec::clear), "it is damaged"),
        (damaged("m.cwasm.sig", |sig| sig[100] ^= 1), "signature"),
        (damaged("m.cwasm.sig", |sig| sig.truncate(80)), "its signature cannot be read"),
        (revoked, "none of this node's trusted keys has signed it"),
        (with(|it| it.module = "00".to_owned()), "it is of another module"),
        (
            with(|it| it.version = "47.0.0".to_owned()),
            "it is for wasmtime 47.0.0, and this node has",
        ),
        (with(|it| it.features = vec!["quantum".to_owned()]), "processor lacks: quantum"),
        (with(|it| it.architecture = "vax".to_owned()), "it is for processors of vax"),
        (with(|it| it.options = "slow".to_owned()), "it was compiled with `slow`"),
    ] {
        let start = fixture.start().await;
        assert_eq!((start.code(), start.compiled), (module(), 1), "{part}: {}", start.lines);
        let line = start.lines.lines().find(|line| line.contains("/m.cwasm is not used: "));
        assert!(line.is_some_and(|line| line.contains(part)), "{part} missing in: {}", start.lines);
    }
    let missing = Fixture::signed(&statement());
    std::fs::remove_file(missing.dir.path().join("rootfs/m.cwasm")).unwrap();
    let start = missing.start().await;
    assert!(start.compiled == 1 && start.lines.contains("its code cannot be read: it is gone"));
}

#[tokio::test]
async fn a_key_that_is_trusted_no_more_takes_its_code_with_it() {
    let mut fixture = Fixture::signed(&statement());
    assert_eq!(fixture.start().await.code(), CODE);
    // Also for a node that runs: the file counts.
    std::fs::remove_file(&fixture.public).unwrap();
    let start = fixture.start().await;
    assert_eq!((start.code(), start.compiled), (module(), 1), "{}", start.lines);
    assert!(start.lines.contains("trusts no key") && start.lines.contains("cannot be read"));
    fixture.config.trusted_keys.clear();
    assert_eq!(fixture.start().await.code(), module());
}

#[tokio::test]
async fn a_node_that_never_compiles_runs_what_is_signed_and_nothing_else() {
    let mut fixture = Fixture::signed(&statement());
    fixture.config.enabled = false;
    assert_eq!(fixture.start().await.code(), CODE);
    let mut other = Fixture::new();
    other.config.enabled = false;
    let start = other.start().await;
    let error = start.plan.unwrap_err();
    assert!(matches!(error, PlanError::Aot(AotError::NeverCompiles { .. })), "{error}");
    for part in ["/m.wasm in the root file system", "`cwasi compile --sign`", "`enabled = false`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(start.compiled, 0);
}

#[tokio::test]
async fn a_level_of_processors_has_a_file_of_its_own() {
    let fixture = Fixture::new();
    fixture.write("m.x86-64-v3.cwasm", CODE);
    fixture.write("m.x86-64-v3.cwasm.sig", &sign(&fixture.key, &statement()));
    assert_eq!(fixture.start().await.code(), CODE);
}

#[tokio::test]
async fn delivered_code_is_taken_from_its_archive() {
    use std::io::{Cursor, Write as _};
    let mut fixture = Fixture::new();
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let files = [("a.wasm", module()), ("a.cwasm", CODE.to_vec())];
    let signature = ("a.cwasm.sig", sign(&fixture.key, &statement()));
    for (name, bytes) in files.into_iter().chain([signature]) {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    let archive = zip.finish().unwrap().into_inner();
    let (module, archive) = delivered::module_of(archive).unwrap();
    let delivery = Delivery { module: Some(module), archive, ..Delivery::default() };
    fixture.delivery = Some(delivery);
    let start = fixture.start().await;
    assert_eq!((start.code().as_slice(), start.compiled), (CODE, 0), "{}", start.lines);
    fixture.config.trusted_keys.clear();
    let start = fixture.start().await;
    assert_eq!(start.compiled, 1);
    assert!(
        start.lines.contains("a.cwasm is not used: this node trusts no key"),
        "{}",
        start.lines
    );
}
