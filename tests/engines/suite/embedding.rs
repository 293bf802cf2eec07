//! Embedded modules: after every call the caller must still have memories and globals of its own.

use super::inside::Inside;
use super::*;
use cwasi_modes::causes::Refusal;
use cwasi_wire::control::EmbeddedModule;

/// What a guest does to notice that it does not see its own memory any more: the pattern at 4096 and the
/// global are its own, copying, filling and growing reach them.
const SELF_CHECK: &str = r#"
    (global $mine (mut i64) (i64.const MARK))
    (func $plant
        (memory.fill (i32.const 4096) (i32.const BYTE) (i32.const 256)))
    (func $check
        (if (i64.ne (global.get $mine) (i64.const MARK)) (then unreachable))
        (if (i32.ne (memory.size) (i32.const PAGES)) (then unreachable))
        (memory.copy (i32.const 5000) (i32.const 4096) (i32.const 256))
        (if (i32.ne (i32.load8_u (i32.const 5255)) (i32.const BYTE)) (then unreachable))
        (if (i32.ne (i32.load8_u (i32.const 4096)) (i32.const BYTE)) (then unreachable))
        (memory.fill (i32.const 5000) (i32.const 0) (i32.const 256)))"#;

fn self_check(byte: u8, pages: u32) -> String {
    SELF_CHECK
        .replace("MARK", &format!("{}", u64::from(byte) * 1_000_003))
        .replace("BYTE", &byte.to_string())
        .replace("PAGES", &pages.to_string())
}

/// Grows to three pages, and makes no calls.
fn inner() -> String {
    format!(
        r#"(module (memory (export "memory") 2) {}
        (func (export "_initialize") (drop (memory.grow (i32.const 1))) (call $plant))
        (func (export "twice") (param i64) (result i64)
            (call $check)
            (i64.mul (local.get 0) (i64.const 2)))
        (func (export "trap") unreachable))"#,
        self_check(77, 3)
    )
}

/// Calls `inner` and checks itself before, between and after.
fn library() -> String {
    format!(
        r#"(module
        (import "inner" "twice" (func $twice (param i64) (result i64)))
        (import "inner" "trap" (func $trap))
        (memory (export "memory") 5) {}
        (func (export "cwasi.home"))
        (func (export "_initialize") (call $plant))
        (func (export "mix") (param i32 f64 i64) (result i64 f64)
            (call $check)
            (call $twice (local.get 2))
            (call $check)
            (i64.extend_i32_u (local.get 0))
            (i64.add)
            (call $twice)
            (call $check)
            (local.get 1))
        (func (export "trap") (call $trap)))"#,
        self_check(55, 5)
    )
}

fn caller(body: &str) -> String {
    format!(
        r#"(module
        (import "library" "mix" (func $mix (param i32 f64 i64) (result i64 f64)))
        (import "library" "trap" (func $trap))
        (import "inner" "twice" (func $twice (param i64) (result i64)))
        (memory (export "memory") 1) {}
        (func (export "cwasi.home"))
        (func (export "_initialize") (call $plant))
        {body})"#,
        self_check(33, 1)
    )
}

pub(super) fn embed(name: &str, built: &Built, dispatch: bool) -> EmbeddedModule {
    EmbeddedModule {
        name: name.into(),
        artifact: built.artifact.clone(),
        digest: String::new(),
        dispatch,
        reason: "a test".into(),
    }
}

pub(super) fn load_embedding(
    built: &Built,
    embedded: &[EmbeddedModule],
) -> Result<AnyModule, VmError> {
    engine(EngineOptions::default())?.load_with(&built.artifact, embedded)
}

fn library_and_inner() -> (Built, Built) {
    (build(&library()), build(&inner()))
}

#[test]
fn a_caller_keeps_its_memory_and_globals_after_linked_calls() {
    let _turn = one_at_a_time();
    let (library, inner) = library_and_inner();
    let root = build(&caller(
        r#"(func (export "run") (param $n i32) (result i32)
            (local $i i64) (local $f f64)
            (loop $again
                (call $mix (i32.const 4) (f64.const 0.5) (i64.const 3))
                (local.set $f) (local.set $i)
                (call $check)
                (if (f64.ne (local.get $f) (f64.const 0.5)) (then unreachable))
                (if (i64.ne (local.get $i) (i64.const 20)) (then unreachable))
                (if (i64.ne (call $twice (i64.const 21)) (i64.const 42)) (then unreachable))
                (call $check)
                (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (call $check)
            (i32.const 1))"#,
    ));
    let embedded = [embed("inner", &inner, false), embed("library", &library, false)];
    let module = load_embedding(&root, &embedded).unwrap();
    let mut host = host();
    for _ in 0..20 {
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        assert_eq!(instance.call("run", &[50], &mut host), Ok(Some(1)));
        assert_eq!(instance.memory().len(), 65_536);
    }
}

#[test]
fn a_trap_or_exit_names_who_called_whom() {
    let _turn = one_at_a_time();
    let (library, inner) = library_and_inner();
    let root = build(&caller(r#"(func (export "_start") (call $trap))"#));
    let embedded = [embed("inner", &inner, false), embed("library", &library, false)];
    let module = load_embedding(&root, &embedded).unwrap();
    let mut host = host();
    for _ in 0..200 {
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        let CommandEnd::Trapped(trap) = instance.run_command("_start", &mut host) else {
            panic!("no trap")
        };
        assert_eq!(
            trap.to_string(),
            "trap in `_start`: in embedded library (`trap`), which called inner (`trap`): unreachable"
        );
    }
    let exits = build(
        r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "leave") (call $exit (i32.const 9))))"#,
    );
    let root = build(
        r#"(module (import "exits" "leave" (func $leave)) (func (export "cwasi.home"))
        (func (export "_start") (call $leave)))"#,
    );
    let module = load_embedding(&root, &[embed("exits", &exits, false)]).unwrap();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let CommandEnd::Trapped(trap) = instance.run_command("_start", &mut host) else {
        panic!("no trap")
    };
    let expected = "trap in `_start`: in embedded exits (`leave`): it called exit(9)";
    assert_eq!(trap.to_string(), expected);
}

#[test]
fn mismatched_modules_are_refused_by_name() {
    let _turn = one_at_a_time();
    let inner = build(&inner());
    let refused = |wat: &str, embedded: &[EmbeddedModule]| {
        load_embedding(&build(wat), embedded).unwrap_err().to_string()
    };
    let one = [embed("inner", &inner, false)];
    let home = r#"(func (export "cwasi.home"))"#;
    let with = |import: &str| format!(r#"(module (import "inner" {import}) {home})"#);
    for (import, part) in [
        (
            r#""twice" (func (param i32) (result i64))"#,
            "imported as (i32) -> (i64), exported as (i64) -> (i64)",
        ),
        (r#""thrice" (func)"#, "`inner` does not export it"),
        (r#""memory" (memory 1)"#, "only functions can be imported"),
    ] {
        let error = refused(&with(import), &one);
        assert!(error.contains(part), "{part} missing in {error}");
    }
    let other = r#"(module (import "outer" "f" (func)))"#;
    assert!(refused(other, &one).contains("unknown module"));
    let homeless = r#"(module (import "inner" "trap" (func)))"#;
    if TESTED == Kind::Wasmedge {
        assert!(refused(homeless, &one).contains("no `cwasi.home`"));
    }
    let called = [embed("inner", &inner, true)];
    assert!(refused(homeless, &called).contains("`cwasi_alloc` with 2 i32 parameters"));
}

/// A reactor that may be embedded: answers its payload reversed once more per call, so that state shows; an
/// empty payload traps, `f…` fails with it, `o…` answers from outside its memory.
fn callee(globals: &str) -> String {
    format!(
        r#"(module (memory (export "memory") 4) {} {globals}
        (global $next (mut i32) (i32.const 8192))
        (global $calls (mut i32) (i32.const 48))
        (func (export "_initialize") (call $plant))
        (func (export "cwasi_alloc") (param i32 i32) (result i32)
            (local $at i32)
            (call $check)
            (local.set $at (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
            (global.set $next (i32.add (local.get $at) (local.get 0)))
            (if (i32.gt_u (global.get $next) (i32.const 262144)) (then (return (i32.const 0))))
            (local.get $at))
        (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
            (call $check)
            (if (i32.eqz (local.get $n)) (then unreachable))
            (i32.store (local.get $out) (local.get $p))
            (i32.store offset=4 (local.get $out) (local.get $n))
            (if (i32.eq (i32.load8_u (local.get $p)) (i32.const 0x66)) (then (return (i32.const 1))))
            (if (i32.eq (i32.load8_u (local.get $p)) (i32.const 0x6f))
                (then (i32.store (local.get $out) (i32.const 262144))))
            (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
            (i32.store8 (local.get $p) (global.get $calls))
            (i32.const 0)))"#,
        self_check(99, 4)
    )
}

/// Calls the function whose name lies at 64 with the payload at 128, `n` bytes, outcome at 32; checks itself.
fn dispatcher(target: &str) -> String {
    format!(
        r#"(module
        (import "cwasi" "request_dispatcher"
            (func $call (param i32 i32 i32 i32 i32) (result i32)))
        (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
        (memory (export "memory") 1) {}
        (func (export "cwasi.home"))
        (func (export "_initialize") (call $plant))
        (data (i32.const 64) "{target}")
        (data (i32.const 128) "xyz")
        (func (export "call") (param $n i32) (result i32) (local $errno i32)
            (local.set $errno
                (call $call (i32.const 64) (i32.const {}) (i32.const 128) (local.get $n) (i32.const 32)))
            (call $check)
            (local.get $errno))
        (func (export "read") (param $handle i32) (param $at i32) (param $len i32) (result i32)
            (local $errno i32)
            (local.set $errno (call $read (local.get $handle) (local.get $at) (local.get $len)))
            (call $check)
            (local.get $errno)))"#,
        self_check(33, 1),
        target.len()
    )
}

/// Serves `callee` embedded and anything else elsewhere; keeps its calls.
#[derive(Clone, Default)]
struct Embeds(std::rc::Rc<std::cell::RefCell<Vec<String>>>);

impl Dispatch for Embeds {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _: Option<Deadline>,
    ) -> CallResult {
        self.0.borrow_mut().push(format!("call {target}"));
        Ok(Payload::Inline(copied(payload)))
    }

    fn embedded(
        &mut self,
        target: &str,
        payload_len: u64,
        _: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        if payload_len == 3000 {
            return Err(Refusal::Remote { text: "not today".to_owned() }.into());
        }
        Ok((target == "callee").then_some(1))
    }

    fn embedded_ended(&mut self, response_len: Option<u64>) -> Result<(), CallError> {
        self.0.borrow_mut().push(format!("embedded {response_len:?}"));
        Ok(())
    }

    fn linked(
        &mut self,
        caller: Option<&str>,
        callee: &str,
        ended: &cwasi_host_functions::LinkEnded,
    ) {
        let (request, response) = (ended.request_bytes, ended.response_bytes);
        self.0.borrow_mut().push(format!("{caller:?} {callee} {request} {response}"));
    }
}

struct Dispatching {
    host: Host,
    log: Embeds,
    instance: AnyInstance,
    _code: Vec<Built>,
}

impl Dispatching {
    fn new(target: &str) -> Self {
        Self::of(target, &callee(""))
    }

    fn of(target: &str, callee: &str) -> Self {
        let (root, callee, inner) = (build(&dispatcher(target)), build(callee), build(&inner()));
        let embedded = [embed("inner", &inner, false), embed("callee", &callee, true)];
        let module = load_embedding(&root, &embedded).unwrap();
        let log = Embeds::default();
        let mut host = Host::new(Context::default(), Box::new(log.clone()), Box::new(Echo));
        host.begin(Context::default());
        let instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        Self { host, log, instance, _code: vec![root, callee, inner] }
    }

    fn call(&mut self, n: i32) -> Result<Option<i32>, GuestStop> {
        self.instance.call("call", &[n], &mut self.host)
    }

    /// Handle, length and status of the outcome.
    fn outcome(&self) -> [i32; 3] {
        let field =
            |at: usize| i32::from_le_bytes(self.instance.memory()[at..at + 4].try_into().unwrap());
        [field(32), field(36), field(40)]
    }

    fn read(&mut self, handle: i32, len: i32) -> String {
        let read = self.instance.call("read", &[handle, 1024, len], &mut self.host);
        assert_eq!(read, Ok(Some(0)));
        let len = usize::try_from(len).unwrap();
        String::from_utf8_lossy(&self.instance.memory()[1024..1024 + len]).into_owned()
    }
}

#[test]
fn a_call_of_an_embedded_function_stays_in_the_vm() {
    let _turn = one_at_a_time();
    let buffers = r#"(global (export "cwasi_response") i32 (i32.const 2048))
        (global (export "cwasi_payload") i32 (i32.const 6144))"#;
    for globals in ["", buffers] {
        stays_in_the_vm(Dispatching::of("callee", &callee(globals)));
    }
}

fn stays_in_the_vm(mut vm: Dispatching) {
    let mut handles = Vec::new();
    for _ in 0..8 {
        assert_eq!(vm.call(3), Ok(Some(0)));
        let [handle, len, status] = vm.outcome();
        assert_eq!((len, status), (3, 0));
        handles.push(handle);
    }
    // Read late: the callee has run again since, over the same memory.
    for (index, handle) in handles.into_iter().enumerate() {
        assert_eq!(vm.read(handle, 3), format!("{}yz", index + 1));
    }
    assert!(vm.log.0.borrow().iter().all(|log| log == "embedded Some(3)"));
    assert_eq!(vm.host.context().function, "", "as before");
}

#[test]
fn an_embedded_functions_failures_are_the_callers_errno() {
    let _turn = one_at_a_time();
    let mut vm = Dispatching::new("callee");
    for (first, errno, text) in [
        (b'f', Errno::Failed, "fyz"),
        (
            b'o',
            Errno::Trapped,
            "`cwasi_handle` returned 3 bytes at 0x40000, outside its linear memory",
        ),
    ] {
        vm.instance.memory_mut()[128] = first;
        assert_eq!(vm.call(3), Ok(Some(errno.code())));
        let [handle, len, status] = vm.outcome();
        assert_eq!(status, errno.code());
        assert!(vm.read(handle, len).contains(text));
    }
    assert_eq!(vm.call(3000), Ok(Some(Errno::Refused.code())));
    let [handle, len, _] = vm.outcome();
    assert_eq!(vm.read(handle, len), "not today");
    vm.instance.memory_mut()[128] = b'x';
    assert_eq!(vm.call(60_000), Ok(Some(Errno::Ok.code())));
    for _ in 0..3 {
        drop(vm.call(60_000));
    }
    assert_eq!(vm.call(60_000), Ok(Some(Errno::Failed.code())), "its memory is full");
    let [handle, len, _] = vm.outcome();
    assert!(vm.read(handle, len).contains("no memory in the guest for 60000 bytes"));
    assert_eq!(vm.call(100_000), Ok(Some(Errno::BadPointer.code())));
    let Err(GuestStop::Trapped(trap)) = Dispatching::new("callee").call(0) else {
        panic!("no trap")
    };
    assert_eq!(trap.to_string(), "trap in `call`: in embedded callee: unreachable");
}

/// The errno of a call or start with five bytes of a callee that traps when its handler runs.
fn not_run(start: bool, alloc: u32, globals: &str) -> (i32, Vec<u8>) {
    let (name, parameter) =
        if start { ("dispatch_start", "(i32.const 0)") } else { ("request_dispatcher", "") };
    let root = build(&format!(
        r#"(module
        (import "cwasi" "{name}" (func $call (param i32 i32 i32 i32 i32{}) (result i32)))
        (memory (export "memory") 1) {}
        (func (export "cwasi.home"))
        (func (export "_initialize") (call $plant))
        (data (i32.const 64) "callee")
        (func (export "call") (result i32) (local $errno i32)
            (local.set $errno
                (call $call (i32.const 64) (i32.const 6) (i32.const 128) (i32.const 5) {parameter} (i32.const 32)))
            (call $check)
            (local.get $errno)))"#,
        if start { " i32" } else { "" },
        self_check(33, 1)
    ));
    let callee = build(&format!(
        r#"(module (memory (export "memory") 1) {globals}
        (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const {alloc}))
        (func (export "cwasi_handle") (param i32 i32 i32) (result i32) unreachable))"#
    ));
    let module = load_embedding(&root, &[embed("callee", &callee, true)]).unwrap();
    let mut host = Host::new(Context::default(), Box::new(Inside("callee")), Box::new(Echo));
    host.begin(Context::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let errno = instance.call("call", &[], &mut host).unwrap().unwrap();
    (errno, instance.memory()[32..36].to_vec())
}

#[test]
fn no_handler_runs_without_its_payload() {
    let _turn = one_at_a_time();
    let outside = r#"(global (export "cwasi_response") i32 (i32.const 8))
        (global (export "cwasi_payload") i32 (i32.const 0xfffc))"#;
    for (alloc, globals, errno) in
        [(0, "", Errno::Failed), (0xfffc, "", Errno::Trapped), (1024, outside, Errno::Trapped)]
    {
        assert_eq!(not_run(false, alloc, globals).0, errno.code(), "{globals}");
        let (started, handle) = not_run(true, alloc, globals);
        assert_eq!(started, 0, "dispatch_wait tells how it ended: {globals}");
        assert_ne!(handle, [0; 4], "{globals}");
    }
}

#[test]
fn other_functions_are_called_as_ever() {
    let _turn = one_at_a_time();
    let mut vm = Dispatching::new("somebody");
    assert_eq!(vm.call(3), Ok(Some(0)));
    let [handle, len, _] = vm.outcome();
    assert_eq!(vm.read(handle, len), "xyz");
    assert_eq!(*vm.log.0.borrow(), ["call somebody"]);
}

/// Upper-cases an offered text, by way of a buffer at 100.
const BUFFERS: &str = r#"(module
    (import "cwasi" "link_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "cwasi" "link_return" (func $return (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "upper") (result i32) (local $at i32)
        (if (call $read (i32.const 0) (i32.const 100) (i32.const 100) (i32.const 0)) (then unreachable))
        (local.set $at (i32.const 100))
        (loop $again
            (i32.store8 (local.get $at) (i32.and (i32.load8_u (local.get $at)) (i32.const 0xdf)))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $at) (i32.add (i32.const 100) (i32.load (i32.const 0))))))
        (call $return (i32.const 100) (i32.load (i32.const 0)))))"#;

#[test]
fn buffers_pass_between_linked_modules() {
    let _turn = one_at_a_time();
    let root = build(&format!(
        r#"(module
        (import "cwasi" "link_offer" (func $offer (param i32 i32) (result i32)))
        (import "cwasi" "link_result" (func $result (param i32 i32 i32) (result i32)))
        (import "texts" "upper" (func $upper (result i32)))
        (memory (export "memory") 1) {}
        (data (i32.const 64) "paths")
        (func (export "cwasi.home"))
        (func (export "_initialize") (call $plant))
        (func (export "run") (result i32)
            (if (call $offer (i32.const 64) (i32.const 5)) (then unreachable))
            (if (call $upper) (then unreachable))
            (call $check)
            (if (i32.ne (call $result (i32.const 200) (i32.const 4) (i32.const 8)) (i32.const 14))
                (then unreachable))
            (if (call $result (i32.const 200) (i32.const 5) (i32.const 8)) (then unreachable))
            (call $check)
            (i32.load (i32.const 8))))"#,
        self_check(33, 1)
    ));
    let texts = build(BUFFERS);
    let module = load_embedding(&root, &[embed("texts", &texts, false)]).unwrap();
    let log = Embeds::default();
    let mut host = Host::new(Context::default(), Box::new(log.clone()), Box::new(Echo));
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert_eq!(instance.call("run", &[], &mut host), Ok(Some(5)));
    assert_eq!(&instance.memory()[200..206], b"PATHS\0");
    assert_eq!(*log.0.borrow(), ["None texts 5 5"]);
}

#[test]
fn every_memory_is_limited() {
    let _turn = one_at_a_time();
    let library = build(
        r#"(module (memory (export "memory") 1)
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#,
    );
    let root = build(
        r#"(module (import "library" "grow" (func $grow (param i32) (result i32)))
        (memory (export "memory") 1) (func (export "cwasi.home"))
        (func (export "grow") (param i32) (result i32) (call $grow (local.get 0)))
        (func (export "own") (param i32) (result i32) (memory.grow (local.get 0))))"#,
    );
    let engine =
        engine(EngineOptions { memory_max: Some(3 * PAGE_LEN), ..Default::default() }).unwrap();
    let module = engine.load_with(&root.artifact, &[embed("library", &library, false)]).unwrap();
    let mut host = host();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    // WasmEdge limits each memory. With wasmtime all memories of an instance share three pages, of which two are taken.
    let grown = match TESTED {
        Kind::Wasmedge => [("grow", 3, -1), ("grow", 2, 1), ("grow", 1, -1), ("own", 1, 1)],
        Kind::Wasmtime => [("grow", 2, -1), ("grow", 1, 1), ("grow", 1, -1), ("own", 1, -1)],
    };
    for (export, pages, expected) in grown {
        let grown = instance.call(export, &[pages], &mut host);
        assert_eq!(grown, Ok(Some(expected)), "{export} {pages}");
    }
}
