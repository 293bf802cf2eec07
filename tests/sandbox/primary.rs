//! Primaries: the guest's output, exit code, traps and signals are the container's.

use crate::secondary::{is_wasmtime, overflow};
use std::os::fd::AsFd;

use cwasi_sys::seqpacket;
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, FunctionLaunch, ResolveReply, Role, SandboxMessage,
};
use cwasi_wire::envelope::{Hello, Request, Response};
use nix::sys::signal::Signal;

use crate::fixture::Fixture;
use crate::frames::{receive_frame, send_frame};
use crate::function::{Function, command, identity, launch};
use crate::guests::guests;

fn primary(export: &str) -> FunctionLaunch {
    launch(Role::Primary, &guests().primary, command(export))
}

#[test]
fn output_and_exit_code_are_the_guests() {
    let fixture = Fixture::new();
    let mut function = Function::start(&fixture, "p", primary("_start"));
    assert_eq!(function.container.wait(), 7);
    assert_eq!(function.container.output(), "hello\n");
    function.container.delete();
    assert!(fixture.cgroups("p").is_empty());
    let function = Function::start(&fixture, "q", primary("returns"));
    assert_eq!(function.container.wait(), 0);
    function.container.delete();
}

#[test]
fn a_trap_and_an_overflow_are_said_and_have_their_codes() {
    let fixture = Fixture::new();
    let mut function = Function::start(&fixture, "t", primary("trap"));
    assert_eq!(function.container.wait(), 134);
    let errors = function.container.errors();
    assert!(errors.contains("unreachable") && errors.contains("trap"), "{errors}");
    function.container.delete();
    let mut function = Function::start(&fixture, "o", primary("recurse"));
    // wasmtime notices: a trap.
    let code = if is_wasmtime() { 134 } else { 139 };
    assert_eq!(function.container.wait(), code);
    let errors = function.container.errors();
    assert!(errors.contains(overflow()), "{errors}");
    function.container.delete();
}

#[test]
fn stop_signals_and_the_timeout_end_a_loop() {
    let fixture = Fixture::new();
    for (id, signal) in
        [("term", Signal::SIGTERM), ("int", Signal::SIGINT), ("kill", Signal::SIGKILL)]
    {
        let function = Function::start(&fixture, id, primary("loop"));
        function.container.signal(signal);
        assert_eq!(function.container.wait(), 128 + signal as i32);
        function.container.delete();
    }
    let mut function = Function::start(
        &fixture,
        "time",
        FunctionLaunch { timeout_ms: Some(500), ..primary("loop") },
    );
    assert_eq!(function.container.wait(), 137);
    assert!(function.container.errors().contains("cwasi.timeout"));
    function.container.delete();
}

#[test]
fn impossible_functions_are_refused_at_create() {
    let fixture = Fixture::new();
    let missing = Function::create(&fixture, "e", primary("nothing")).err().unwrap();
    assert!(missing.contains("nothing") && missing.contains("_start"), "{missing}");
    let text = fixture.dir.path().join("text.so");
    std::fs::write(&text, "no native code").unwrap();
    let damaged = launch(Role::Primary, &text, command("_start"));
    assert!(Function::create(&fixture, "d", damaged).err().unwrap().contains("text.so"));
    for id in ["e", "d"] {
        assert!(fixture.cgroups(id).is_empty() && !fixture.root().join(id).exists());
    }
}

#[test]
fn a_guest_calls_then_allocates_copies_and_calls_again() {
    let fixture = Fixture::new();
    let caller = launch(Role::Primary, &guests().caller, command("_start"));
    let mut function = Function::create(&fixture, "caller", caller).unwrap();
    function.container.start();
    // The shim's part: one question, because the route is kept. Init's word may come before or after it.
    let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
    let mut ready = 0;
    let question = loop {
        let received = seqpacket::receive(function.broker.as_fd(), &mut buffer, None).unwrap();
        match control::decode(&buffer[..received.len]).unwrap() {
            SandboxMessage::Ready => ready += 1,
            SandboxMessage::Resolve(request) => {
                assert_eq!(request.target, "callee");
                break received;
            }
            other => panic!("{other:?}"),
        }
    };
    let (theirs, callee) = seqpacket::pair().unwrap();
    let hello = Hello::of(&identity("f"), "", "i");
    send_frame(theirs.as_fd(), &hello, b"", None).unwrap();
    let reply = ResolveReply::Local {
        instance: "callee-1".into(),
        reason: "same host".into(),
        max_payload: 1 << 20,
        max_head: 65_536,
        instances: 1,
        nearest: true,
        lends: false,
    };
    seqpacket::send(
        question.descriptors[0].as_fd(),
        &[&control::encode(&reply)],
        &[theirs.as_fd()],
        None,
    )
    .unwrap();
    drop(theirs);
    receive_frame::<Hello>(&callee, &mut buffer, 0, None).unwrap();
    for round in 1..=3_u8 {
        let request = receive_frame::<Request>(&callee, &mut buffer, 1 << 20, None).unwrap();
        assert_eq!(request.payload.into_vec().unwrap(), [b'z'; 1000]);
        let response = Response { call_id: request.envelope.call_id, ..Response::default() };
        send_frame(callee.as_fd(), &response, &[b'0' + round; 2000], None).unwrap();
    }
    assert_eq!(function.container.wait(), 0, "{}", function.container.errors());
    assert_eq!(function.container.output(), "3".repeat(2000));
    // The worker's report and init's word come from two processes, in either order.
    let mut edges = Vec::new();
    while edges.is_empty() || ready == 0 {
        match function.message() {
            SandboxMessage::Ready => ready += 1,
            SandboxMessage::Edges(report) => edges = report,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ready, 1);
    assert!(edges[0].calls == 3 && edges[0].errors.is_empty(), "{edges:?}");
    function.container.delete();
}
