//! Calls of linked functions: each is counted once, whether it goes through the host or not.

use std::cell::RefCell;
use std::rc::Rc;

use super::embedding::{embed, load_embedding};
use super::*;
use cwasi_host_functions::{Dispatch, LinkEnded};
use cwasi_modes::causes::Unavailable;
use cwasi_modes::{CallResult, OutgoingPayload};
use cwasi_sys::clock::Deadline;
use cwasi_vm::Context;

/// Adds, or traps for 7.
const LIBRARY: &str = r#"(module (memory (export "memory") 1)
    (func (export "add") (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 7777)) (then unreachable))
        (i32.add (local.get 0) (local.get 1))))"#;

/// Adds the numbers below its parameter, by calls of its import.
const CALLER: &str = r#"(module
    (import "library" "add" (func $add (param i32 i32) (result i32)))
    (memory (export "memory") 1) (func (export "cwasi.home"))
    (func (export "sum") (param $n i32) (result i32) (local $i i32) (local $sum i32)
        (block $done (loop $again
            (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
            (local.set $sum (call $add (local.get $sum) (local.get $i)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $again)))
        (local.get $sum)))"#;

/// Linked calls of an invocation that have spans.
const SPANS: u32 = 128;

/// Counts calls.
#[derive(Clone, Default)]
struct Counts(Rc<RefCell<Counted>>);

#[derive(Default)]
struct Counted {
    is_traced: bool,
    entered: u32,
    timed: u32,
    untimed: u32,
}

impl Counts {
    fn take(&self) -> [u32; 3] {
        let mut counted = self.0.borrow_mut();
        let is_traced = counted.is_traced;
        let Counted { entered, timed, untimed, .. } =
            std::mem::replace(&mut *counted, Counted { is_traced, ..Counted::default() });
        [entered, timed, timed + untimed]
    }
}

impl Dispatch for Counts {
    fn call(&mut self, _: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        Err(Unavailable::NoShim.into())
    }

    fn is_traced(&self) -> bool {
        self.0.borrow().is_traced
    }

    fn records_linked(&self) -> bool {
        let counted = self.0.borrow();
        counted.is_traced && counted.entered < SPANS
    }

    fn enter_linked(&mut self, _: Option<&str>, _: &str) {
        self.0.borrow_mut().entered += 1;
    }

    fn linked(&mut self, _: Option<&str>, callee: &str, _: &LinkEnded) {
        assert_eq!(callee, "library");
        self.0.borrow_mut().timed += 1;
    }

    fn linked_directly(&mut self, caller: Option<&str>, callee: &str, calls: u32) {
        assert_eq!((caller, callee), (None, "library"));
        self.0.borrow_mut().untimed += calls;
    }
}

#[test]
fn each_linked_call_is_counted_once() {
    let _turn = one_at_a_time();
    let (library, caller) = (build(LIBRARY), build(CALLER));
    let module = load_embedding(&caller, &[embed("library", &library, false)]).unwrap();
    let counts = Counts::default();
    let mut host = Host::new(Context::default(), Box::new(counts.clone()), Box::new(Echo));
    host.begin(Context::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    for calls in [1, 0, 63, 64, 65, 1000] {
        let sum = calls * (calls - 1) / 2;
        assert_eq!(instance.call("sum", &[calls], &mut host), Ok(Some(sum)));
        let [entered, timed, all] = counts.take();
        assert_eq!((entered, all), (0, calls.cast_unsigned()));
        assert!(timed >= all.div_ceil(64), "{timed} of {all} timed");
    }
    // A recorded trace has the first ones.
    counts.0.borrow_mut().is_traced = true;
    assert_eq!(instance.call("sum", &[100], &mut host), Ok(Some(4950)));
    assert_eq!(counts.take(), [100; 3]);
    assert_eq!(instance.call("sum", &[1000], &mut host), Ok(Some(499_500)));
    let [entered, timed, all] = counts.take();
    assert!(entered >= SPANS && timed >= SPANS, "{entered} of {all}");
    assert_eq!(all, 1000);
    counts.0.borrow_mut().is_traced = false;
    assert_eq!(instance.call("sum", &[200], &mut host), Ok(Some(19_900)));
    assert_eq!(counts.take()[2], 200);
    // A trap ends the one that it happens in, without a count.
    let stopped = instance.call("sum", &[10_000], &mut host);
    let Err(GuestStop::Trapped(trap)) = stopped else { panic!("{stopped:?}") };
    assert_eq!(trap.reason, "in embedded library (`add`): unreachable");
    assert_eq!(counts.take()[2], 7777);
}

/// A module that calls a function of [`LIBRARY`] while it is instantiated, `(start …)`.
const STARTS: &str = r#"(module
    (import "library" "add" (func $add (param i32 i32) (result i32)))
    (memory (export "memory") 1) (func (export "cwasi.home"))
    (global $sum (mut i32) (i32.const 0))
    (func $f (global.set $sum (call $add (i32.const 40) (i32.const 2))))
    (start $f)
    (func (export "sum") (param i32) (result i32)
        (call $add (global.get $sum) (local.get 0))))"#;

#[test]
fn a_start_function_calls_linked_functions_or_is_refused_in_words() {
    let _turn = one_at_a_time();
    let (library, caller) = (build(LIBRARY), build(STARTS));
    let module = load_embedding(&caller, &[embed("library", &library, false)]).unwrap();
    let counts = Counts::default();
    let mut host = Host::new(Context::default(), Box::new(counts.clone()), Box::new(Echo));
    host.begin(Context::default());
    let made = module.instantiate(&InstanceSpec::default(), &mut host);
    if TESTED == Kind::Wasmedge {
        let error = made.unwrap_err().to_string();
        assert!(error.contains("a start function cannot call linked functions"), "{error}");
        assert!(error.contains("cwasi.engine=wasmtime"), "{error}");
        return;
    }
    let mut instance = made.unwrap();
    assert_eq!(counts.take(), [0, 1, 1], "by the start function");
    assert_eq!(instance.call("sum", &[8], &mut host), Ok(Some(50)));
    assert_eq!(counts.take()[2], 1);
}
