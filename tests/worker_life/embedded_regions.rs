//! Regions of embedded modules with the engine's real memory, as what this process has mapped: each case counts it.

use cwasi_testbed::engines;
use std::fs;
use std::path::PathBuf;

use cwasi_abi::REGION_PAGE;
use cwasi_engine_tests::{AnyEngine, compile};
use cwasi_engine_tests::{AnyInstance, AnyModule};
use cwasi_modes::pool::SegmentPool;
use cwasi_vm::{
    Context, Engine as _, EngineOptions, Host, Instance as _, InstanceSpec, Module as _,
};
use cwasi_wire::control::EmbeddedModule;
use tempfile::TempDir;

use crate::harness::Case;
use crate::inside::Inside;
use crate::worker::Lines;

const PAGE: i32 = REGION_PAGE.cast_signed();
/// A region here: above what is copied anyway.
const PAGES: i32 = 20;
const AT: i32 = 65_536;
const LEN: i32 = PAGES * PAGE - 100;

/// Hands the host functions through, and reads and writes as a guest does.
const GUEST: &str = include_str!("../engines/suite/regions.wat");

pub const CASES: &[Case] = &[
    ("what_is_embedded_has_regions_of_its_own", regions_of_its_own),
    ("a_region_goes_into_embedded_modules_without_a_copy_and_back", without_a_copy),
    ("and_so_does_one_of_a_pool", without_a_copy_from_a_pool),
    ("a_sealed_region_is_copied_as_it_was_sealed_where_it_cannot_be_mapped", copied_as_sealed),
];

/// How many of this process' mappings show payloads.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:cwasi-p")).count()
}

fn build(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let wasm = directory.path().join(format!("{name}.wasm"));
    fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
    compile(engines::tested(), &wasm)
}

/// `root` with `module` embedded.
fn load(root: &str, name: &str, module: &str, dispatch: bool) -> AnyModule {
    let directory = tempfile::tempdir().unwrap();
    let embedded = EmbeddedModule {
        name: name.into(),
        artifact: build(&directory, "embedded", module),
        digest: String::new(),
        dispatch,
        reason: "a test".into(),
    };
    let root = build(&directory, "root", root);
    AnyEngine::new(EngineOptions::default()).unwrap().load_with(&root, &[embedded]).unwrap()
}

/// A VM within its request.
struct Vm {
    instance: AnyInstance,
    host: Host,
}

impl Vm {
    fn new(module: &AnyModule, pool: Option<SegmentPool>) -> Self {
        let mut host =
            Host::new(Context::default(), Box::new(Inside("echo")), Box::new(Lines::default()));
        host.begin(Context::default());
        let spec = InstanceSpec { pool, ..InstanceSpec::default() };
        let instance = module.instantiate(&spec, &mut host).unwrap();
        Self { instance, host }
    }

    fn run(&mut self, export: &str, params: &[i32]) -> i32 {
        self.instance.call(export, params, &mut self.host).unwrap().unwrap_or(0)
    }

    /// Calls `echo`; the number that it answers.
    fn answer(&mut self) -> i32 {
        assert_eq!(self.run("call", &[AT, LEN]), 0);
        assert_eq!(self.run("read", &[1024, 4]), 0);
        let bytes = self.instance.memory()[1024..1028].try_into().unwrap();
        i32::from_le_bytes(bytes)
    }
}

fn regions_of_its_own() {
    let share = r#"(import "cwasi" "region_share" (func $share (param i32 i32) (result i32)))"#;
    let library = format!(
        r#"(module {share} (memory (export "memory") 1)
        (func (export "try") (result i32) (call $share (i32.const 0) (i32.const 4096))))"#
    );
    let root = format!(
        r#"(module {share} (import "library" "try" (func $try (result i32)))
        (memory (export "memory") 1)
        (func (export "cwasi.home"))
        (func (export "theirs") (result i32) (call $try))
        (func (export "ours") (result i32) (call $share (i32.const 0) (i32.const 4096))))"#
    );
    let mut vm = Vm::new(&load(&root, "library", &library, false), None);
    assert_eq!(mapped(), 0);
    for export in ["theirs", "ours", "theirs"] {
        assert_eq!(vm.run(export, &[]), 0);
    }
    assert_eq!(mapped(), 2, "one each");
}

fn without_a_copy() {
    goes_into_embedded_modules(None);
}

fn without_a_copy_from_a_pool() {
    goes_into_embedded_modules(Some(SegmentPool::new(64 << 20)));
}

fn goes_into_embedded_modules(pool: Option<SegmentPool>) {
    let root = GUEST.replacen("(memory", r#"(func (export "cwasi.home")) (memory"#, 1);
    let module = load(&root, "echo", GUEST, true);
    // The pool keeps a mapping of each of its segments.
    let kept = usize::from(pool.is_some());
    let mut vm = Vm::new(&module, pool.clone());
    assert_eq!(mapped(), 0);
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.run("fill", &[AT, LEN, 7]);
    assert_eq!(vm.answer(), 7 * LEN, "an open region is copied");
    assert_eq!(mapped(), kept + 1);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    assert_eq!(vm.answer(), 7 * LEN);
    assert_eq!(mapped(), kept + 2, "the same pages in both memories");
    assert_eq!(vm.run("sum", &[AT, LEN]), 7 * LEN, "what the callee wrote is its own");
    vm.run("fill", &[AT, LEN, 9]);
    assert_eq!(vm.answer(), 7 * LEN, "as it was sealed, whatever either has written since");
    assert_eq!(
        mapped(),
        kept + 2,
        "the callee's block of the call before is ordinary memory again"
    );
    // Memory grows behind shared pages of both, and the caller has its own after the call.
    assert_eq!(vm.run("grow", &[1]), 32);
    assert_eq!(vm.run("sum", &[AT, LEN]), 9 * LEN);
    // Without a payload the callee answers a region, which is mapped where the caller reads it.
    let at = AT + 2 * PAGES * PAGE;
    assert_eq!(vm.run("call", &[0, 0]), 0);
    assert_eq!(vm.run("read", &[at, PAGES * PAGE]), 0);
    assert_eq!(vm.run("sum", &[at, PAGES * PAGE]), 7 * (PAGES * PAGE - 100));
    assert_eq!(
        mapped(),
        2 * kept + 3,
        "the caller's region, the callee's answer, and where it is read"
    );
    drop(vm);
    assert_eq!(mapped(), 2 * kept, "mappings go with the VM");
    drop(module);
    if let Some(pool) = pool {
        assert!(pool.trim(), "and so do the tokens");
    }
}

/// The callee's allocator knows no pages.
fn copied_as_sealed() {
    let root = GUEST.replacen("(memory", r#"(func (export "cwasi.home")) (memory"#, 1);
    let (whole, at) =
        ("(global.set $next (i32.add (local.get $at) (local.get $n)))", "(local.get $at)");
    let odd = "(global.set $next (i32.add (local.get $at) (i32.add (local.get $n) (i32.const 1))))";
    let end = format!("{whole}\n        {at})");
    assert!(GUEST.contains(&end));
    let callee = GUEST.replace(&end, &format!("{odd} (i32.add (i32.const 1) {at}))"));
    let module = load(&root, "echo", &callee, true);
    let mut vm = Vm::new(&module, None);
    assert_eq!(vm.run("share", &[AT, PAGES * PAGE]), 0);
    vm.run("fill", &[AT, LEN, 7]);
    assert_eq!(vm.run("seal", &[AT, LEN]), 0);
    vm.run("fill", &[AT, LEN, 9]);
    assert_eq!(vm.answer(), 7 * LEN);
    assert_eq!(mapped(), 1, "the caller's");
}
