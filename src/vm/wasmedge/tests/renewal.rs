//! Renewed instances: whatever a guest did, the next request finds the state of a new instance.

use cwasi_abi::REGION_PAGE;
use proptest::prelude::*;

use super::*;
use cwasi_modes::Payload;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{NotRenewed, Start};
use cwasi_vm::reactor::{self, HandlerOutcome, InstanceBlocks, Preallocation};

/// Lets the host do to an instance whatever a guest can.
const GUEST: &str = r#"(module
    (import "cwasi" "region_share" (func $share (param i32 i32) (result i32)))
    (import "cwasi" "region_seal" (func $seal (param i32 i32) (result i32)))
    (import "cwasi" "region_release" (func $release (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 3 40)
    (data (i32.const 100) "from the module")
    (data (i32.const 70000) "and more")
    (global $a (mut i32) (i32.const 1))
    (global $b (mut i64) (i64.const 2))
    (global $c (mut f32) (f32.const 3))
    (global $d (mut f64) (f64.const 4))
    (global $e (mut v128) (v128.const i64x2 5 6))
    (global $never i32 (i32.const 7))
    (func (export "_initialize")
        (global.set $a (i32.const 11)) (drop (memory.grow (i32.const 1)))
        (i32.store (i32.const 200000) (i32.const 0x12345678)))
    (func (export "globals") (param i32)
        (global.set $a (local.get 0)) (global.set $b (i64.extend_i32_s (local.get 0)))
        (global.set $c (f32.reinterpret_i32 (local.get 0))) (global.set $d (f64.convert_i32_s (local.get 0)))
        (global.set $e (i32x4.splat (local.get 0))))
    (func (export "fill") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 2) (local.get 1)))
    (func (export "load") (param i32) (result i32) (i32.load (local.get 0)))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "size") (result i32) (memory.size))
    (func (export "share") (param i32 i32) (result i32) (call $share (local.get 0) (local.get 1)))
    (func (export "seal") (param i32 i32) (result i32) (call $seal (local.get 0) (local.get 1)))
    (func (export "release") (param i32 i32) (result i32) (call $release (local.get 0) (local.get 1)))
    (func (export "trap") unreachable)
    (func (export "exit") (call $exit (i32.const 0))))"#;

/// Wasm pages that the guest has after `_initialize`.
const FIRST: i32 = 4;
const WASM_PAGE: i32 = 65_536;

struct Guest {
    module: WasmEdgeModule,
    spec: InstanceSpec,
    host: Host,
}

impl Guest {
    fn new(wat: &str) -> Self {
        let module = load(&build(wat)).unwrap();
        Self { module, spec: InstanceSpec::default(), host: host() }
    }

    fn fresh(&mut self) -> WasmEdgeInstance {
        let mut instance = self.module.instantiate(&self.spec, &mut self.host).unwrap();
        instance.remember(Start::Alike(0));
        instance
    }

    /// One that can be renewed: two fresh ones were alike.
    fn renewable(&mut self) -> WasmEdgeInstance {
        assert!(!self.fresh().renew(), "the first one is not known to be like others");
        self.fresh()
    }

    fn call(&mut self, on: &mut WasmEdgeInstance, export: &str, params: &[i32]) -> i32 {
        on.call(export, params, &mut self.host).unwrap().unwrap_or(0)
    }
}

/// Everything that a guest can find in an instance.
fn everything(instance: &WasmEdgeInstance) -> (Vec<u8>, Vec<u128>) {
    (instance.memory().to_vec(), instance.global_bits())
}

/// Something that a guest does.
#[derive(Clone, Debug)]
enum Deed {
    Globals(i32),
    Fill(i32, i32, i32),
    Read(i32),
    Grow(i32),
    /// First page, pages, and whether the region is sealed or released afterwards.
    Share(i32, i32, u8),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let at = 0..30 * WASM_PAGE;
    let deed = prop_oneof![
        any::<i32>().prop_map(Deed::Globals),
        (at.clone(), 0..100_000, any::<i32>())
            .prop_map(|(at, len, with)| Deed::Fill(at, len, with)),
        at.prop_map(Deed::Read),
        (0..12).prop_map(Deed::Grow),
        (0..200, 1..40, 0..3_u8).prop_map(|(at, pages, end)| Deed::Share(at, pages, end)),
    ];
    prop::collection::vec(deed, 0..12)
}

/// Does it, as far as that is possible in the instance's memory without a trap.
fn perform(guest: &mut Guest, on: &mut WasmEdgeInstance, deed: &Deed) {
    let size = guest.call(on, "size", &[]) * WASM_PAGE;
    match *deed {
        Deed::Globals(value) => drop(guest.call(on, "globals", &[value])),
        Deed::Fill(at, len, with) if at + len <= size => {
            guest.call(on, "fill", &[at, len, with]);
        }
        Deed::Read(at) if at + 4 <= size => drop(guest.call(on, "load", &[at])),
        Deed::Grow(pages) => drop(guest.call(on, "grow", &[pages])),
        Deed::Share(at, pages, end) => {
            let page = REGION_PAGE.cast_signed();
            let (at, len) = (at * page, pages * page);
            if at + len > size || guest.call(on, "share", &[at, len]) != 0 {
                return;
            }
            guest.call(on, "fill", &[at, len, 0xdd]);
            match end {
                0 => drop(guest.call(on, "seal", &[at, len - 100])),
                1 => drop(guest.call(on, "release", &[at, len])),
                _ => {}
            }
        }
        Deed::Fill(..) | Deed::Read(_) => {}
    }
}

#[test]
fn a_renewed_instance_is_a_fresh_one_byte_for_byte() {
    let _turn = one_at_a_time();
    for pool in [None, Some(SegmentPool::new(64 << 20))] {
        let mut guest = Guest::new(GUEST);
        guest.spec.pool = pool;
        let mut instance = guest.renewable();
        let expected = everything(&guest.fresh());
        assert_eq!(expected.1.len(), 5);
        let config = ProptestConfig::with_cases(60);
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let instance = std::cell::RefCell::new((&mut guest, &mut instance));
        let ran = runner.run(&deeds(), |deeds| {
            let (guest, instance) = &mut *instance.borrow_mut();
            deeds.iter().for_each(|deed| perform(guest, instance, deed));
            prop_assert!(instance.renew());
            prop_assert!(everything(instance) == expected, "{deeds:?}");
            prop_assert_eq!(guest.call(instance, "size", &[]), FIRST);
            Ok(())
        });
        ran.unwrap();
    }
}

#[test]
fn grown_memory_is_gone_and_grows_again_as_zeros() {
    let _turn = one_at_a_time();
    let mut guest = Guest::new(GUEST);
    let mut instance = guest.renewable();
    for _ in 0..50 {
        assert_eq!(guest.call(&mut instance, "size", &[]), FIRST);
        assert_eq!(guest.call(&mut instance, "grow", &[40 - FIRST]), FIRST);
        assert_eq!(guest.call(&mut instance, "grow", &[1]), -1, "the module's own limit");
        let grown = &instance.memory()[FIRST as usize * WASM_PAGE as usize..];
        assert!(grown.iter().all(|byte| *byte == 0));
        let (at, len) = (FIRST * WASM_PAGE, 36 * WASM_PAGE);
        guest.call(&mut instance, "fill", &[at, len, 1]);
        assert!(instance.renew());
    }
    let ended = instance.call("load", &[FIRST * WASM_PAGE], &mut guest.host);
    let Err(GuestStop::Trapped(trap)) = ended else { panic!("{ended:?}") };
    assert!(trap.to_string().contains("out of bounds memory access"), "{trap}");
}

/// A guest whose response is all of the payload's block, whatever of that its payload is.
const WHOLE_BLOCK: &str = r#"(module
    (memory (export "memory") 3)
    (global $next (mut i32) (i32.const 65536))
    (global $len (mut i32) (i32.const 0))
    (func (export "cwasi_alloc") (param $len i32) (param $align i32) (result i32)
        (local $at i32)
        (local.set $at (i32.and
            (i32.sub (i32.add (global.get $next) (local.get $align)) (i32.const 1))
            (i32.sub (i32.const 0) (local.get $align))))
        (global.set $next (i32.add (local.get $at) (local.get $len)))
        (global.set $len (local.get $len))
        (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
            (then (drop (memory.grow (i32.const 40)))))
        (local.get $at))
    (func (export "cwasi_handle") (param $at i32) (param $len i32) (param $out i32) (result i32)
        (i32.store (local.get $out) (local.get $at))
        (i32.store offset=4 (local.get $out) (global.get $len))
        (i32.const 0)))"#;

#[test]
fn nothing_of_a_payload_is_left_in_its_place() {
    let _turn = one_at_a_time();
    const LONG: usize = 300_000;
    let mut guest = Guest::new(WHOLE_BLOCK);
    let mut ahead = Preallocation::within(None);
    ahead.learn(LONG as u64);
    let mut fresh = || {
        let mut instance = guest.module.instantiate(&guest.spec, &mut guest.host).unwrap();
        let mut kept = InstanceBlocks::default();
        reactor::prepare(&mut instance, &mut kept, ahead, &mut guest.host).unwrap();
        instance.remember(Start::Alike(ahead.len()));
        (instance, kept)
    };
    drop(fresh());
    let (mut instance, first) = fresh();
    let mut request = |payload: &Payload| {
        let mut kept = first;
        let handled = reactor::handle_again(&mut instance, &mut kept, payload, &mut guest.host);
        let HandlerOutcome::Answered(block) = handled else { panic!("{handled:?}") };
        assert_eq!(block.len() as u64, ahead.len(), "it was not asked again");
        let block = block.to_vec();
        assert!(instance.renew());
        block
    };
    for round in 1..10 {
        let long = Payload::Segment(Segment::copy_of(&vec![round; LONG]).unwrap());
        let block = request(&long);
        assert!(block[..LONG].iter().all(|byte| *byte == round));
        assert!(block[LONG..].iter().all(|byte| *byte == 0));
        for len in [1000, 10] {
            let block = request(&Payload::Inline(vec![0xee; len]));
            assert!(block[..len].iter().all(|byte| *byte == 0xee));
            assert!(block[len..].iter().all(|byte| *byte == 0), "the payload before is there");
        }
    }
}

#[test]
fn a_stopped_instance_is_not_renewed() {
    let _turn = one_at_a_time();
    let mut guest = Guest::new(GUEST);
    guest.renewable();
    for export in ["trap", "exit"] {
        let mut instance = guest.fresh();
        assert!(instance.renew());
        assert!(instance.call(export, &[], &mut guest.host).is_err());
        assert!(!instance.renew(), "{export}");
    }
    let mut unremembered = guest.module.instantiate(&guest.spec, &mut guest.host).unwrap();
    assert!(!unremembered.renew());
}

#[test]
fn an_instance_of_another_specification_is_not_renewed() {
    let _turn = one_at_a_time();
    let mut guest = Guest::new(GUEST);
    guest.renewable();
    guest.spec.env = vec!["ANOTHER=1".to_owned()];
    assert!(!guest.fresh().renew());
}

#[test]
fn modules_that_can_leave_something_elsewhere_are_not_renewed() {
    let _turn = one_at_a_time();
    let memory = r#"(memory (export "memory") 1)"#;
    let wasi = |name: &str, params: &str| {
        format!(
            r#"(module (import "wasi_snapshot_preview1" "{name}" (func $f (param {params}) (result i32))) {memory}"#
        )
    };
    let initialize = |body: &str| format!(r#"(func (export "_initialize") {body}))"#);
    for (wat, expected) in [
        (format!("(module {memory})"), None),
        (
            format!(
                "(module {memory} (table 1 funcref) (func (table.set (i32.const 0) (ref.null func))))"
            ),
            Some(NotRenewed::State),
        ),
        (
            format!(r#"(module {memory} (data $d "x") (func (data.drop $d)))"#),
            Some(NotRenewed::State),
        ),
        // Imported, as by most C libraries, and not called.
        (wasi("fd_close", "i32") + ")", None),
        (
            wasi("fd_close", "i32") + &initialize("(drop (call $f (i32.const 1)))"),
            Some(NotRenewed::OpensAtStart),
        ),
        (wasi("random_get", "i32 i32") + ")", None),
        // Every instance starts with other bytes.
        (
            wasi("random_get", "i32 i32")
                + &initialize("(drop (call $f (i32.const 0) (i32.const 8)))"),
            Some(NotRenewed::Varies),
        ),
        // Nothing keeps more than that.
        (
            r#"(module (memory (export "memory") 600) (func (export "_initialize")
            (memory.fill (i32.const 0) (i32.const 1) (i32.const 36000000))))"#
                .to_owned(),
            Some(NotRenewed::TooLarge),
        ),
    ] {
        let mut guest = Guest::new(&wat);
        for number in 0..4 {
            let mut instance = guest.fresh();
            assert_eq!(instance.renew(), expected.is_none() && number > 0, "{wat}");
            if number > 0 {
                assert_eq!(instance.not_renewed(), expected, "{wat}");
            }
        }
    }
}

/// The C library's way: it imports what a request hardly ever calls.
#[test]
fn a_request_that_leaves_something_in_wasi_is_its_instances_last() {
    let _turn = one_at_a_time();
    let wat = r#"(module
        (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_fdstat_set_flags" (func $flags (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "flags") (param i32) (result i32) (call $flags (local.get 0) (i32.const 4)))
        (func (export "close") (result i32) (call $close (i32.const 2)))
        (func (export "write") (result i32)
            (call $write (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 8))))"#;
    let mut guest = Guest::new(wat);
    let mut instance = guest.renewable();
    for _ in 0..3 {
        assert_eq!(guest.call(&mut instance, "write", &[]), 0);
        assert!(instance.renew());
    }
    assert_eq!(guest.call(&mut instance, "close", &[]), 0);
    assert_eq!(guest.call(&mut instance, "write", &[]), 8, "it is closed");
    assert!(!instance.renew());
    assert_eq!(instance.not_renewed(), Some(NotRenewed::Opens));
    let mut next = guest.fresh();
    assert_eq!(guest.call(&mut next, "write", &[]), 0, "and open for the next one");
    assert!(next.renew());
    // No descriptor: an error, and noted all the same.
    assert_ne!(guest.call(&mut next, "flags", &[3]), 0);
    assert!(!next.renew());
}

/// `cwasi.isolation=snapshot`: what time and random numbers have made of an instance is what each request finds,
/// however large that is, and whatever the requests before it did.
#[test]
fn a_snapshot_is_gone_back_to_byte_for_byte() {
    let _turn = one_at_a_time();
    let random = r#"(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))"#;
    let start = |len: u32| {
        format!(
            "(drop (call $random (i32.const 150000) (i32.const {len})))\n(global.set $a (i32.const 11))"
        )
    };
    for len in [100, 3_000_000] {
        let guest_text = GUEST
            .replace(r#"(memory (export "memory") 3 40)"#, r#"(memory (export "memory") 60 100)"#)
            .replacen("(import", &format!("{random} (import"), 1)
            .replace(
                "(global.set $a (i32.const 11)) (drop (memory.grow (i32.const 1)))",
                &start(len),
            );
        for pool in [None, Some(SegmentPool::new(64 << 20))] {
            let mut guest = Guest::new(&guest_text);
            guest.spec.pool = pool;
            let mut instance = guest.module.instantiate(&guest.spec, &mut guest.host).unwrap();
            let expected = everything(&instance);
            instance.remember(Start::Snapshot);
            assert!(everything(&instance) == expected);
            let config = ProptestConfig::with_cases(30);
            let mut runner = proptest::test_runner::TestRunner::new(config);
            let both = std::cell::RefCell::new((&mut guest, &mut instance));
            let ran = runner.run(&deeds(), |deeds| {
                let (guest, instance) = &mut *both.borrow_mut();
                deeds.iter().for_each(|deed| perform(guest, instance, deed));
                prop_assert!(instance.renew());
                prop_assert!(everything(instance) == expected, "{deeds:?}");
                Ok(())
            });
            ran.unwrap();
            assert!(
                everything(&guest.module.instantiate(&guest.spec, &mut guest.host).unwrap())
                    != expected
            );
        }
    }
}
