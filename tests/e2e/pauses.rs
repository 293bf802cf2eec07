//! End to end on a real containerd: functions that wait go on waiting after a pause, by the cgroup freezer and by signals.
//!
//! The kernel interrupts some system calls of a process that is stopped and continued. Each test pauses a function again
//! and again until what it waits for is over.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use cwasi_testbed::processes::descendants;
use cwasi_testbed::run::{Outcome, Running};
use cwasi_testbed::scene::{Scene, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a guest sleeps or is waited for.
const WAIT_MS: &str = "2000";
/// Fewest pauses of a waiting guest.
const PAUSES_MIN: u32 = 3;

fn scene(name: &str) -> Scene {
    Scene::new(env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1"), name)
}

/// Pauses and resumes `id` with both ways until `caller` has ended. `paused` counts.
fn pause_until_end(scene: &Scene, id: &str, mut caller: Running, paused: &AtomicU32) -> Outcome {
    wait_for("the task", || (scene.status(id).as_deref() == Some("RUNNING")).then_some(()));
    let init = scene.pid(id);
    while !caller.has_ended() {
        // A primary may end meanwhile.
        if scene.ctr(["task", "pause", id]).code == 0 {
            let _resumed = scene.ctr(["task", "resume", id]);
        }
        let processes: Vec<i32> =
            descendants(init).iter().map(|process| process.pid).chain([init]).collect();
        for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
            for pid in &processes {
                let _gone = kill(Pid::from_raw(*pid), signal);
            }
        }
        paused.fetch_add(1, Ordering::SeqCst);
    }
    caller.finish().unwrap()
}

#[test]
fn a_primary_that_sleeps_goes_on_sleeping() {
    let (scene, paused) = (scene("pause-primary"), AtomicU32::new(0));
    let run = scene.guest("p", "probe").args(["say-then", "begun", "sleep", "6000"]);
    let primary = run.spawn(&scene.containerd).unwrap();
    let outcome = pause_until_end(&scene, "p", primary, &paused).success();
    assert_eq!(outcome.text(), "begun\n", "{}", outcome.stderr);
    assert!(paused.into_inner() >= PAUSES_MIN);
}

#[test]
fn a_callee_that_sleeps_answers() {
    let (scene, paused) = (scene("pause-callee"), AtomicU32::new(0));
    scene.secondary("server", "server");
    let payload = format!("!sleep {WAIT_MS}");
    let run = scene.guest("p", "probe").args(["calls", "server", &payload]);
    let caller = run.spawn(&scene.containerd).unwrap();
    let outcome = pause_until_end(&scene, "server", caller, &paused).success();
    assert!(outcome.text().starts_with("ok: "), "{}{}", outcome.text(), outcome.stderr);
    assert!(paused.into_inner() >= PAUSES_MIN);
}

#[test]
fn a_caller_that_waits_for_several_calls_gets_all_answers() {
    let (scene, paused) = (scene("pause-caller"), AtomicU32::new(0));
    let actor = scene.guest("actor", "actor").args(["nap", WAIT_MS]);
    scene.start(actor.annotation("cwasi.role", "secondary"));
    let run = scene.guest("p", "fan").args(["answers", "actor", "3"]);
    let caller = run.spawn(&scene.containerd).unwrap();
    let outcome = pause_until_end(&scene, "p", caller, &paused);
    let _answered = outcome.success();
    assert!(paused.into_inner() >= PAUSES_MIN);
}

/// The guest's socket has a time limit, without which the kernel repeats the call itself.
#[test]
fn a_function_that_waits_in_a_socket_reads_on() {
    let (scene, paused) = (scene("pause-socket"), AtomicU32::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let order = format!("tcp={}", listener.local_addr().unwrap());
    let run = scene.guest("p", "net").args([&order]).flag("--net-host");
    let allowed = listener.local_addr().unwrap().to_string();
    let run = run.annotation("cwasi.network", &allowed).annotation("cwasi.timeout", "60s");
    let client = run.spawn(&scene.containerd).unwrap();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            let before = paused.load(Ordering::SeqCst);
            wait_for("pauses", || {
                (paused.load(Ordering::SeqCst) >= before + PAUSES_MIN).then_some(())
            });
            stream.write_all(b"at last").unwrap();
        });
        pause_until_end(&scene, "p", client, &paused).success()
    });
    assert_eq!(outcome.text(), format!("{order} -> at last\n"), "{}", outcome.stderr);
}
