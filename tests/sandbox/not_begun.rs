//! Calls that no worker has begun: a worker's death is not their error, and where the function ends they can go
//! elsewhere.

use cwasi_abi::Errno;
use cwasi_sandbox::worker_table::Phase;
use cwasi_wire::control::{Entry, FunctionLaunch, Role, SandboxMessage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::direct::Stopped;
use crate::fixture::{Fixture, eventually};
use crate::function::{Caller, Function, Outcome, launch};
use crate::guests::{compiled, guests, slow};

const LONG_MS: u64 = 20_000;

fn reactor() -> FunctionLaunch {
    launch(Role::Secondary, &guests().reactor, Entry::Reactor)
}

/// A function of one worker, whose instances take long to make.
fn slow_function<'a>(fixture: &'a Fixture, name: &str) -> Function<'a> {
    let slow = launch(Role::Secondary, &compiled("slow", &slow()), Entry::Reactor);
    Function::start(fixture, name, slow)
}

fn errno(outcome: Outcome) -> Errno {
    Errno::from_code(outcome.unwrap_err().0).unwrap()
}

/// A call that init has given to the one worker, which is stopped before it begins.
fn assigned(function: &Function<'_>, caller: &mut Caller) -> (u64, Stopped) {
    eventually("a worker that is stopped before it begins", || {
        // Now it makes its next instance.
        assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
        let number = caller.send(b"c", LONG_MS);
        let phase = || function.table()[0].phase();
        eventually("the call in its worker's hands", || {
            matches!(phase(), Phase::Assigned | Phase::Running).then_some(())
        });
        let stopped = Stopped::new(Pid::from_raw(function.workers()[0]));
        if phase() == Phase::Assigned {
            return Some((number, stopped));
        }
        drop(stopped);
        assert_eq!(caller.receive(), (number, Ok(b"1".to_vec())));
        None
    })
}

#[test]
fn a_call_whose_worker_dies_before_it_begins_is_another_workers() {
    let fixture = Fixture::new();
    let function = slow_function(&fixture, "unbegun");
    let mut caller = function.caller();
    let (number, _stopped) = assigned(&function, &mut caller);
    kill(Pid::from_raw(function.workers()[0]), Signal::SIGKILL).unwrap();
    assert_eq!(caller.receive(), (number, Ok(b"1".to_vec())));
    function.end();
}

#[test]
fn a_call_that_has_not_begun_when_its_function_ends_can_go_elsewhere() {
    let fixture = Fixture::new();
    let function = slow_function(&fixture, "ending");
    let mut caller = function.caller();
    let (number, _stopped) = assigned(&function, &mut caller);
    // The second one means: at once.
    function.container.signal(Signal::SIGTERM);
    eventually("a function that ends", || function.caller_if_listening().is_none().then_some(()));
    function.container.signal(Signal::SIGTERM);
    let (ended, outcome) = caller.receive();
    assert_eq!((ended, errno(outcome)), (number, Errno::Unreachable));
    function.container.wait();
    function.container.delete();
}

#[test]
fn an_unread_call_of_a_function_that_ends_can_go_elsewhere() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "unread", reactor());
    let mut caller = function.caller();
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    function.until_idle(1);
    let pids = [function.container.pid, Pid::from_raw(function.workers()[0])];
    let [init, _worker] = pids.map(Stopped::new);
    let number = caller.send(b"c", LONG_MS);
    function.container.signal(Signal::SIGTERM);
    drop(init);
    let (ended, outcome) = caller.receive();
    assert_eq!((ended, errno(outcome)), (number, Errno::Unreachable));
    function.container.wait();
    function.container.delete();
}

#[test]
fn a_function_that_may_not_have_as_many_processes_does_not_start() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("pids", &["/f.wasm"], |spec| {
        spec["linux"]["resources"]["pids"] = json!({ "limit": 4 });
    });
    let launch = FunctionLaunch { concurrency: 12, ..reactor() };
    let function = Function::create_in(&fixture, "pids", bundle, launch).unwrap();
    function.container.start();
    let SandboxMessage::StartFailed { message } = function.message() else { panic!("started") };
    for part in ["cwasi.concurrency: 12", "pids limit"] {
        assert!(message.contains(part), "{message}");
    }
    function.container.wait();
    function.container.delete();
}
