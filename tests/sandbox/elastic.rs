//! A function without `cwasi.concurrency` has more workers while its requests wait and its workers sleep.

use cwasi_abi::Errno;
use cwasi_wire::control::{Entry, FunctionLaunch, Role};

use crate::fixture::{Fixture, eventually};
use crate::function::{Function, launch};
use crate::guests::guests;

/// Deadline of calls that do not end by themselves, in milliseconds.
const LONG_MS: u64 = 600_000;
/// A call that sleeps until its worker is killed.
const SLEEPS: &[u8] = b"p";

fn elastic(workers_max: u32, queue: u32) -> FunctionLaunch {
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    FunctionLaunch { workers_max, queue, ..reactor }
}

#[test]
fn a_request_runs_while_those_before_it_sleep() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "grows", elastic(5, 8));
    assert_eq!(function.workers().len(), 1);
    let mut callers = [function.caller(), function.caller()];
    for caller in &mut callers {
        caller.send(SLEEPS, LONG_MS);
        caller.send(SLEEPS, LONG_MS);
    }
    // Requests of several callers arrive in any order.
    eventually("a worker for each", || (function.workers().len() == 4).then_some(()));
    assert_eq!(function.caller().call(b"e"), Ok(b"e".to_vec()), "by the fifth worker");
    assert_eq!(function.workers().len(), 5);
    // The bound holds.
    let mut late = function.caller();
    late.send(SLEEPS, LONG_MS);
    let (code, _) = late.call_within(b"e", 300).unwrap_err();
    assert_eq!(Errno::from_code(code), Some(Errno::Timeout));
    assert_eq!(function.workers().len(), 5);
    function.end();
}

#[test]
fn an_added_worker_has_no_successor() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "shrinks", elastic(4, 8));
    let mut caller = function.caller();
    for _ in 0..4 {
        caller.send(SLEEPS, 5_000);
    }
    eventually("a worker for each", || (function.workers().len() == 4).then_some(()));
    // Each is killed at its request's deadline.
    for _ in 0..4 {
        let (_, outcome) = caller.receive();
        assert_eq!(Errno::from_code(outcome.unwrap_err().0), Some(Errno::Timeout));
    }
    eventually("the first one's successor", || (function.workers().len() == 1).then_some(()));
    assert_eq!(caller.call(b"e"), Ok(b"e".to_vec()));
    function.end();
}

#[test]
fn without_a_queue_each_request_has_a_worker_up_to_the_bound() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "refuses", elastic(3, 0));
    let mut callers = [function.caller(), function.caller(), function.caller()];
    for caller in &mut callers {
        caller.send(SLEEPS, LONG_MS);
    }
    eventually("a worker for each", || (function.workers().len() == 3).then_some(()));
    let (code, message) = function.caller().call(b"e").unwrap_err();
    assert_eq!(Errno::from_code(code), Some(Errno::Overloaded), "{message}");
    assert!(message.contains("3 workers"), "{message}");
    function.end();
}
