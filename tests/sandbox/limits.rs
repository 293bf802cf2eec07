//! What a secondary's sandbox holds, may do, and has: descriptors, system calls, memory.

use std::path::Path;

use cwasi_abi::Errno;
use cwasi_wire::control::{FunctionLaunch, Role, SandboxMessage};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::fixture::{Fixture, read};
use crate::function::{Function, command, launch};
use crate::guests::guests;
use crate::secondary::{errno, idle_descriptors, idle_descriptors_len, is_wasmtime, reactor};
use crate::system_calls::SYSTEM_CALLS;

#[test]
fn a_sandbox_holds_only_the_descriptors_that_it_was_given() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "fds", FunctionLaunch { concurrency: 2, ..reactor() });
    let mut caller = function.caller();
    assert!(caller.call(b"e").is_ok());
    let init = function.container.descriptors();
    // stdio, broker, log, receiver, signals, what watches workers and connections (those that workers read, and the
    // others), the workers' wake-up, one socket per worker, one connection
    // With wasmtime, the module's data and a page map, too.
    let engine = if is_wasmtime() { 2 } else { 0 };
    assert_eq!(init.len(), 3 + 3 + 1 + 3 + 1 + 2 + 1 + engine, "{init:?}");
    for worker in 0..2 {
        let held = idle_descriptors(&function, worker, 1);
        let targets: Vec<_> = held.iter().map(|(_, path)| path.to_string_lossy()).collect();
        assert_eq!(targets.iter().filter(|path| path.starts_with("socket:")).count(), 3);
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", function.container.pid)).unwrap();
    assert!(maps.contains("reactor."), "loaded before the root was left");
    function.end();
}

#[test]
fn the_documented_system_calls_are_enough_for_an_unprivileged_function() {
    let fixture = Fixture::new();
    for (id, launch) in [
        ("reactor", reactor()),
        ("command", launch(Role::Secondary, &guests().command, command("_start"))),
    ] {
        let bundle = fixture.bundle(id, &["/f.wasm"], |spec| {
            spec["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
            spec["process"]["capabilities"] = json!({});
            spec["root"]["readonly"] = json!(true);
            spec["linux"]["seccomp"] = json!({
                "defaultAction": "SCMP_ACT_ERRNO",
                "syscalls": [{ "names": SYSTEM_CALLS, "action": "SCMP_ACT_ALLOW" }],
            });
        });
        let function = Function::create_in(&fixture, id, bundle, launch).unwrap();
        function.container.start();
        assert_eq!(function.message(), SandboxMessage::Ready);
        assert_eq!(function.container.status("Seccomp:"), "2");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(function.container.status(set), "0000000000000000", "{set}");
        }
        assert_eq!(function.container.status("Uid"), "1000");
        let mut caller = function.caller();
        for size in [1, 100_000, 5 << 20] {
            assert!(caller.call(&vec![b'e'; size]).unwrap().len() >= size);
        }
        for fault in [b"o", b"r", b"x"] {
            drop(caller.call(fault));
        }
        // The reactor never answers these.
        let within = if id == "reactor" { 300 } else { 20_000 };
        for payload in [b"l", b"p"] {
            assert_eq!(caller.call_within(payload, within).is_ok(), id != "reactor");
        }
        assert!(caller.call(b"e").is_ok());
        // Who is not root has no page map: the file is root's. wasmtime's number has another file then.
        let caller = usize::from(is_wasmtime());
        assert_eq!(idle_descriptors(&function, 0, caller).len(), idle_descriptors_len() + caller);
        function.container.signal(Signal::SIGTERM);
        assert_eq!(function.container.wait(), 143);
        function.container.delete();
    }
}

#[test]
fn a_profile_without_them_is_named_as_the_reason() {
    let fixture = Fixture::new();
    let strict = |id: &str, missing: &str| {
        let bundle = fixture.bundle(id, &["/f.wasm"], |spec| {
            let names: Vec<_> = SYSTEM_CALLS.iter().filter(|name| **name != missing).collect();
            spec["linux"]["seccomp"] = json!({
                "defaultAction": "SCMP_ACT_KILL_PROCESS",
                "syscalls": [{ "names": names, "action": "SCMP_ACT_ALLOW" }],
            });
        });
        Function::create_in(&fixture, id, bundle, reactor())
    };
    let message = strict("sendmsg", "sendmsg").err().unwrap();
    assert!(message.contains("seccomp"), "{message}");
    let function = strict("getppid", "getppid").unwrap();
    function.container.start();
    let SandboxMessage::StartFailed { message } = function.message() else { panic!("started") };
    assert!(message.contains("seccomp"), "{message}");
    assert_eq!(function.container.wait(), 125);
}

#[test]
fn a_worker_without_memory_is_one_requests_error() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("oom", &["/f.wasm"], |spec| {
        spec["linux"]["resources"]["memory"] = json!({ "limit": 32 << 20 });
    });
    let function = Function::create_in(&fixture, "oom", bundle, reactor()).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    let mut caller = function.caller();
    let (code, message) = caller.call(&vec![b'e'; 64 << 20]).unwrap_err();
    assert_eq!(errno(code), Errno::Broken, "{message}");
    assert!(message.contains("memory"), "{message}");
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
}

#[test]
fn the_hard_limit_of_descriptors_is_the_specifications() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("nofile", &["/f.wasm"], |spec| {
        spec["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 512, "hard": 700 }]);
    });
    let function = Function::create_in(&fixture, "nofile", bundle, reactor()).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    let limits = read(Path::new(&format!("/proc/{}/limits", function.container.pid)));
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limits: Vec<_> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(limits, ["700", "700"], "soft up to hard, and no further");
    function.end();
}
