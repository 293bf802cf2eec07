//! What guests may do with sockets, beside saying where to: kinds of sockets and their options.

use cwasi_wire::control::{Entry, Role};
use cwasi_wire::egress::Egress;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{Fixture, eventually};
use crate::function::{Function, command, launch};
use crate::guests::compiled;

/// The engine's kinds of sockets.
const INET4: u32 = 1;
const INET6: u32 = 2;
const UNIX: u32 = 3;
const DATAGRAM: u32 = 1;
const STREAM: u32 = 2;
/// The engine's numbers of options.
const TYPE: u32 = 1;
const ERROR: u32 = 2;
const KEEP_ALIVE: u32 = 7;
const OK: u32 = 0;
const INVAL: u32 = 28;
const NOPROTOOPT: u32 = 50;
const NOSYS: u32 = 52;

/// Makes each call, which gives an errno, and exits with 0 or with the number of the first with another one.
fn guest(calls: &[(String, u32)]) -> String {
    let check = |(number, (call, errno)): (usize, &(String, u32))| {
        let code = number + 1;
        format!("(if (i32.ne {call} (i32.const {errno})) (then (call $exit (i32.const {code}))))\n")
    };
    let checks: String = calls.iter().enumerate().map(check).collect();
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_getsockopt"
    (func $get (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_setsockopt"
    (func $set (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 200) "lo\00\00\01\00\00\00\01\00\00\00\01\00\00\00")
  (func $socket (result i32)
    (if (call $open (i32.const {INET4}) (i32.const {STREAM}) (i32.const 16))
      (then (call $exit (i32.const 99))))
    (i32.load (i32.const 16)))
  ;; an option's value at 100, with room for as many bytes; an index that is mapped nowhere is there
  (func $value (param $name i32) (param $room i32) (result i32)
    (i32.store (i32.const 100) (i32.const 0x7fffffff))
    (i32.store (i32.const 104) (local.get $room))
    (call $get (call $socket) (i32.const 0) (local.get $name) (i32.const 100) (i32.const 104)))
  (func (export "_start")
    {checks}))"#
    )
}

/// Exit code in a container of its own, and stderr.
fn run(name: &str, calls: &[(String, u32)]) -> (i32, String) {
    let fixture = Fixture::new();
    let mut launch = launch(Role::Primary, &compiled(name, &guest(calls)), command("_start"));
    let entries = vec!["*:*".parse().unwrap()];
    launch.egress = Some(Egress { entries, ..Egress::default() });
    let mut function = Function::create(&fixture, name, launch).unwrap();
    function.container.start();
    let code = function.container.wait();
    let errors = function.container.errors();
    function.container.delete();
    (code, errors)
}

/// The engine aborts when there is no room for an error. Built without assertions, it takes the guest's bytes for the
/// number of an entry of a table of its own.
#[test]
fn errors_of_sockets_show_no_memory_of_the_host() {
    let value =
        |name: u32, room: u32| format!("(call $value (i32.const {name}) (i32.const {room}))");
    let mut calls = Vec::new();
    for name in [TYPE, ERROR, KEEP_ALIVE] {
        calls.extend((0..4).map(|room| (value(name, room), INVAL)));
        calls.push((value(name, 4), OK));
    }
    assert_eq!(run("errors-of-sockets", &calls).0, 0);
}

#[test]
fn only_two_families_and_two_types_of_sockets_can_be_opened() {
    let open = |family: u32, kind: u32| {
        format!("(call $open (i32.const {family}) (i32.const {kind}) (i32.const 16))")
    };
    let mut calls = Vec::new();
    for family in [INET4, INET6] {
        calls.extend([DATAGRAM, STREAM].map(|kind| (open(family, kind), OK)));
        // Any; raw, seqpacket, packet by their numbers in Linux.
        calls.extend([0, 3, 5, 10].map(|kind| (open(family, kind), INVAL)));
    }
    calls.extend([DATAGRAM, STREAM].map(|kind| (open(UNIX, kind), NOSYS)));
    // Unspecified; netlink, packet, AF_ALG, vsock by their numbers in Linux.
    calls.extend([0, 16, 17, 38, 40, u32::MAX].map(|family| (open(family, STREAM), INVAL)));
    assert_eq!(run("kinds-of-sockets", &calls).0, 0);
}

#[test]
fn dangerous_options_of_sockets_are_refused_and_told() {
    let set = |level: u32, name: u32, len: u32| {
        format!(
            "(call $set (call $socket) (i32.const {level}) (i32.const {name}) (i32.const 200) (i32.const {len}))"
        )
    };
    // By the engine's numbers, of which most options of Linux have none.
    let named = [
        (0, "SO_REUSEADDR"),
        (3, "SO_DONTROUTE"),
        (4, "SO_BROADCAST"),
        (8, "SO_OOBINLINE"),
        (9, "SO_LINGER"),
        (10, "SO_RCVLOWAT"),
        (14, "SO_BINDTODEVICE"),
    ];
    let mut calls = named.map(|(name, _)| (set(0, name, 16), NOPROTOOPT)).to_vec();
    calls.push((set(0, 14, 2), NOPROTOOPT));
    // SO_MARK, SO_PRIORITY, SO_ATTACH_FILTER, SO_BINDTODEVICE by their numbers in Linux; IP and TCP options.
    calls.extend([36, 12 + 256, 26, 25].map(|name| (set(0, name, 16), NOPROTOOPT)));
    calls.extend([1, 6, 41].map(|level| (set(level, KEEP_ALIVE, 16), NOPROTOOPT)));
    calls.push((set(0, KEEP_ALIVE, 4), OK));
    let (code, errors) = run("options-of-sockets", &calls);
    assert_eq!(code, 0, "{errors}");
    for (_, name) in named {
        assert_eq!(errors.matches(name).count(), 1, "{name}: {errors}");
    }
}

/// Answers with the errno of `sock_listen`.
const LISTENER: &str = r#"(module
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_listen" (func $listen (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 1024))
  (func (export "cwasi_handle") (param $ptr i32) (param $len i32) (param $out i32) (result i32)
    (drop (call $open (i32.const 1) (i32.const 2) (i32.const 16)))
    (i32.store (i32.const 32) (call $listen (i32.load (i32.const 16)) (i32.const 1)))
    (i32.store (local.get $out) (i32.const 32))
    (i32.store offset=4 (local.get $out) (i32.const 4))
    (i32.const 0)))"#;

#[test]
fn a_refusal_is_told_once_by_all_workers_of_a_function() {
    let fixture = Fixture::new();
    let mut launch = launch(Role::Secondary, &compiled("listener", LISTENER), Entry::Reactor);
    launch.egress = Some(Egress { entries: vec!["*:*".parse().unwrap()], ..Egress::default() });
    let mut function = Function::start(&fixture, "listener", launch);
    let mut caller = function.caller();
    for _ in 0..3 {
        assert_eq!(caller.call(b"x"), Ok(vec![2, 0, 0, 0]));
        assert_eq!(caller.call(b"x"), Ok(vec![2, 0, 0, 0]));
        let before = function.workers();
        kill(Pid::from_raw(before[0]), Signal::SIGKILL).unwrap();
        eventually("another worker", || {
            let now = function.workers();
            (!now.is_empty() && now != before).then_some(())
        });
    }
    function.end();
    let errors = function.container.errors();
    assert_eq!(errors.matches("listening was refused").count(), 1, "{errors}");
}
