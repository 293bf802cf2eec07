//! Ownership of `cwasi_alloc` blocks: guests that reuse their blocks as early as the ABI allows, in instances that
//! serve one request after the other and as embedded callees.

use cwasi_abi::PAYLOAD_BUFFER_LEN;

use super::embedding::{embed, load_embedding};
use super::inside::Inside;
use super::*;
use cwasi_vm::reactor::{InstanceBlocks, Preallocation};

/// Requests of each guest.
const REQUESTS: usize = 200;

/// A garbage collector that drops what it can: once `cwasi_handle` has returned, the next entry into the guest
/// overwrites all blocks and hands the same memory out again. It tells its response before it looks at the payload,
/// which it answers.
const COLLECTS: &str = r#"
    (global $next (mut i32) (i32.const 0x10000))
    (global $garbage (mut i32) (i32.const 0))
    (func $collect
        (if (global.get $garbage) (then
            (memory.fill (i32.const 0x10000) (i32.const 0xee) (i32.const 0x20000))
            (global.set $next (i32.const 0x10000))
            (global.set $garbage (i32.const 0)))))
    (func (export "cwasi_alloc") (param $len i32) (param $align i32) (result i32) (local $at i32)
        (call $collect)
        (local.set $at (i32.and
            (i32.sub (i32.add (global.get $next) (local.get $align)) (i32.const 1))
            (i32.sub (i32.const 0) (local.get $align))))
        (if (i32.gt_u (i32.add (local.get $at) (local.get $len)) (i32.const 0x30000))
            (then (return (i32.const 0))))
        (global.set $next (i32.add (local.get $at) (local.get $len)))
        (local.get $at))
    (func (export "cwasi_handle") (param $at i32) (param $len i32) (param $out i32) (result i32)
        (i32.store (local.get $out) (local.get $at))
        (i32.store offset=4 (local.get $out) (local.get $len))
        (global.set $garbage (i32.const 1))
        (i32.const 0))"#;

/// It has a `cwasi_free` too, which has nothing to do by then.
const FREES_NOTHING: &str = r#"(func (export "cwasi_free") (param i32 i32 i32) (call $collect))"#;

/// Answers how many of its blocks are not freed yet, in four bytes; a wrong pointer, length or alignment is a trap.
/// Each block has its length and alignment before it.
const COUNTS: &str = r#"
    (global $next (mut i32) (i32.const 0x10000))
    (global $live (mut i32) (i32.const 0))
    (func (export "cwasi_alloc") (param $len i32) (param $align i32) (result i32) (local $at i32)
        (local.set $at (i32.and
            (i32.add (global.get $next) (i32.add (local.get $align) (i32.const 15)))
            (i32.sub (i32.const 0) (local.get $align))))
        (global.set $next (i32.add (local.get $at) (local.get $len)))
        (i32.store align=1 (i32.sub (local.get $at) (i32.const 8)) (local.get $len))
        (i32.store align=1 (i32.sub (local.get $at) (i32.const 4)) (local.get $align))
        (global.set $live (i32.add (global.get $live) (i32.const 1)))
        (local.get $at))
    (func (export "cwasi_free") (param $at i32) (param $len i32) (param $align i32)
        (if (i32.ne (i32.load align=1 (i32.sub (local.get $at) (i32.const 8))) (local.get $len))
            (then unreachable))
        (if (i32.ne (i32.load align=1 (i32.sub (local.get $at) (i32.const 4))) (local.get $align))
            (then unreachable))
        (i32.store align=1 (i32.sub (local.get $at) (i32.const 8)) (i32.const -1))
        (global.set $live (i32.sub (global.get $live) (i32.const 1)))
        (if (i32.eqz (global.get $live)) (then (global.set $next (i32.const 0x10000)))))
    (func (export "cwasi_handle") (param $at i32) (param $len i32) (param $out i32) (result i32)
        (i32.store (i32.const 64) (global.get $live))
        (i32.store (local.get $out) (i32.const 64))
        (i32.store offset=4 (local.get $out) (i32.const 4))
        (i32.const 0))"#;

/// Has a place of its own for its response.
const LENDS: &str = r#"(global (export "cwasi_response") i32 (i32.const 32))"#;

/// Has a buffer for short payloads, too.
const LENDS_BOTH: &str = r#"(global (export "cwasi_response") i32 (i32.const 32))
    (global (export "cwasi_payload") i32 (i32.const 0x8000))"#;

fn module(parts: &[&str]) -> String {
    format!(r#"(module (memory (export "memory") 8) {})"#, parts.concat())
}

/// Requests of different lengths, one after the other in one instance; what they were answered.
fn kept(wat: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let module = load(&build(wat)).unwrap();
    let mut host = host();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let mut kept = InstanceBlocks::default();
    reactor::prepare(&mut instance, &mut kept, Preallocation::default(), &mut host).unwrap();
    let request = |number: usize| {
        let payload = payload(number);
        let input = match number % 3 {
            0 => Payload::Segment(Segment::copy_of(&payload).unwrap()),
            _ => Payload::Inline(payload.clone()),
        };
        host.begin(Context::default());
        let handled = reactor::handle_again(&mut instance, &mut kept, &input, &mut host);
        let HandlerOutcome::Answered(bytes) = handled else { panic!("{handled:?}") };
        let answered = (payload, bytes.to_vec());
        host.end();
        reactor::give_back(&mut instance, &mut kept, &mut host).unwrap();
        reactor::prepare(&mut instance, &mut kept, Preallocation::default(), &mut host).unwrap();
        answered
    };
    (0..REQUESTS).map(request).collect()
}

/// Up to what is mapped.
fn payload(number: usize) -> Vec<u8> {
    let len = [1, 8, 9, 100, 1023, 1024, 1025, 4096, 30_000, 65_537][number % 10];
    vec![u8::try_from(number).unwrap(); len]
}

#[test]
fn a_guest_may_drop_its_blocks_when_its_handler_has_returned() {
    let _turn = one_at_a_time();
    for parts in [&[COLLECTS][..], &[COLLECTS, FREES_NOTHING], &[COLLECTS, LENDS]] {
        for (number, (payload, answer)) in kept(&module(parts)).into_iter().enumerate() {
            assert!(answer == payload, "request {number}: {} bytes", answer.len());
        }
    }
}

#[test]
fn every_block_is_given_back_once() {
    let _turn = one_at_a_time();
    for (parts, live) in [(&[COUNTS][..], 2_i32), (&[COUNTS, LENDS], 1)] {
        for (_, answer) in kept(&module(parts)) {
            assert_eq!(answer, live.to_le_bytes());
        }
    }
}

/// A function that calls its embedded `callee` with `len` bytes at 0x10000, and reads the answer to 0x40000.
const CALLS: &str = r#"(module
    (import "cwasi" "request_dispatcher" (func $call (param i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
    (memory (export "memory") 8)
    (func (export "cwasi.home"))
    (data (i32.const 16) "callee")
    (func (export "call") (param $len i32) (result i32)
        (if (call $call (i32.const 16) (i32.const 6) (i32.const 0x10000) (local.get $len) (i32.const 32))
            (then (return (i32.const -1))))
        (if (call $read (i32.load (i32.const 32)) (i32.const 0x40000) (i32.load (i32.const 36)))
            (then (return (i32.const -2))))
        (i32.load (i32.const 36))))"#;

/// As [`kept`], of an embedded callee.
fn embedded(wat: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (root, callee) = (build(CALLS), build(wat));
    let module = load_embedding(&root, &[embed("callee", &callee, true)]).unwrap();
    let mut host = Host::new(Context::default(), Box::new(Inside("callee")), Box::new(Echo));
    host.begin(Context::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let call = |number: usize| {
        let payload = payload(number);
        instance.memory_mut()[0x10000..0x10000 + payload.len()].copy_from_slice(&payload);
        let len = i32::try_from(payload.len()).unwrap();
        let answered = instance.call("call", &[len], &mut host).unwrap().unwrap();
        let len = usize::try_from(answered).unwrap();
        (payload, instance.memory()[0x40000..0x40000 + len].to_vec())
    };
    (0..REQUESTS).map(call).collect()
}

#[test]
fn so_may_an_embedded_callee() {
    let _turn = one_at_a_time();
    for parts in [
        &[COLLECTS][..],
        &[COLLECTS, FREES_NOTHING],
        &[COLLECTS, LENDS],
        &[COLLECTS, LENDS_BOTH],
        &[COLLECTS, FREES_NOTHING, LENDS_BOTH],
    ] {
        for (number, (payload, answer)) in embedded(&module(parts)).into_iter().enumerate() {
            assert!(answer == payload, "call {number}: {} bytes", answer.len());
        }
    }
}

#[test]
fn an_embedded_callee_gets_every_block_back() {
    let _turn = one_at_a_time();
    for (parts, live) in [(&[COUNTS][..], 2_i32), (&[COUNTS, LENDS], 1)] {
        for (_, answer) in embedded(&module(parts)) {
            assert_eq!(answer, live.to_le_bytes());
        }
    }
}

#[test]
fn a_short_payload_of_an_embedded_call_needs_no_block() {
    let _turn = one_at_a_time();
    for (payload, answer) in embedded(&module(&[COUNTS, LENDS_BOTH])) {
        let blocks = i32::from(payload.len() > PAYLOAD_BUFFER_LEN);
        assert_eq!(answer, blocks.to_le_bytes(), "{} bytes", payload.len());
    }
}

#[test]
fn a_free_of_another_type_is_refused() {
    let _turn = one_at_a_time();
    let wrong = r#"(func (export "cwasi_free") (param i32))"#;
    let error = load(&build(&module(&[COLLECTS, wrong]))).unwrap().check(&Entry::Reactor);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`cwasi_free` with three i32 parameters"), "{error}");
}

#[test]
fn a_collected_memory_is_nearly_full_before_it_is_full() {
    let _turn = one_at_a_time();
    let grows = r#"(func (export "grow") (result i32) (memory.grow (i32.const 1)))"#;
    for (parts, expected) in [(&[COLLECTS, grows][..], Some(15)), (&[COUNTS, grows], None)] {
        let wat = module(parts).replace("(export \"memory\") 8", "(export \"memory\") 8 16");
        let module = load(&build(&wat)).unwrap();
        let mut host = host();
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        let mut full = instance.is_nearly_full().then_some(8);
        for pages in 9..=16 {
            instance.call("grow", &[], &mut host).unwrap();
            full = full.or_else(|| instance.is_nearly_full().then_some(pages));
        }
        assert_eq!(full, expected);
    }
    // One that starts so is as it is meant to be.
    let wat = module(&[COLLECTS]).replace("(export \"memory\") 8", "(export \"memory\") 8 8");
    let module = load(&build(&wat)).unwrap();
    let instance = module.instantiate(&InstanceSpec::default(), &mut host()).unwrap();
    assert!(!instance.is_nearly_full());
}
