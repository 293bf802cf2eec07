//! End to end on a real containerd: functions that wait go on waiting after a pause, by the cgroup freezer and by signals.
//!
//! The kernel interrupts some system calls of a process that is stopped and continued. Each test pauses a function again
//! and again until what it waits for is over. On a busy machine a wait may be over after too few pauses: the test then
//! waits for longer.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use cwasi_testbed::processes::descendants;
use cwasi_testbed::run::{Outcome, Running};
use cwasi_testbed::scene::{Scene, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scene;

/// How long a guest sleeps or is waited for, in milliseconds: the next one when the last one was too short.
const WAITS_MS: [u32; 4] = [2000, 8000, 32_000, 128_000];
/// Longest life of a guest that waits.
const LIFE_MAX: &str = "600s";
/// Fewest pauses of a waiting guest.
const PAUSES_MIN: u32 = 3;

/// Runs a guest with longer and longer waits, until it was paused often enough in one. `run` gets the wait and an id,
/// and returns the number of pauses.
fn until_paused(run: impl Fn(u32, &str) -> u32) {
    let mut runs = WAITS_MS.iter().map(|wait| run(*wait, &format!("p-{wait}")));
    assert!(runs.any(|paused| paused >= PAUSES_MIN), "too few pauses in {WAITS_MS:?} ms");
}

/// Process id of a task that runs.
fn running(scene: &Scene, id: &str) -> Option<i32> {
    let list = scene.ctr(["task", "ls"]).success().text();
    list.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, pid, status) = (fields.next()?, fields.next()?, fields.next()?);
        (name == id && status == "RUNNING").then(|| pid.parse().ok()).flatten()
    })
}

/// Pauses and resumes `id` with both ways until `caller` has ended. `paused` counts.
fn pause_until_end(scene: &Scene, id: &str, mut caller: Running, paused: &AtomicU32) -> Outcome {
    // On a busy machine a short wait may be over before the test has seen the task.
    let init = wait_for("the task", || match running(scene, id) {
        None => caller.has_ended().then_some(None),
        pid => Some(pid),
    });
    let Some(init) = init else { return caller.finish().unwrap() };
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
    let scene = scene("pause-primary");
    until_paused(|wait, id| {
        let paused = AtomicU32::new(0);
        let run = scene.guest(id, "probe").args(["say-then", "begun", "sleep", &wait.to_string()]);
        let primary = run.annotation("cwasi.timeout", LIFE_MAX).spawn(&scene.containerd).unwrap();
        let outcome = pause_until_end(&scene, id, primary, &paused).success();
        assert_eq!(outcome.text(), "begun\n", "{}", outcome.stderr);
        paused.into_inner()
    });
}

#[test]
fn a_callee_that_sleeps_answers() {
    let scene = scene("pause-callee");
    let server = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(server.annotation("cwasi.timeout", LIFE_MAX));
    until_paused(|wait, id| {
        let paused = AtomicU32::new(0);
        let payload = format!("!sleep {wait}");
        let run = scene.guest(id, "probe").args(["calls", "server", &payload]);
        let caller = run.annotation("cwasi.timeout", LIFE_MAX).spawn(&scene.containerd).unwrap();
        let outcome = pause_until_end(&scene, "server", caller, &paused).success();
        assert!(outcome.text().starts_with("ok: "), "{}{}", outcome.text(), outcome.stderr);
        paused.into_inner()
    });
}

#[test]
fn a_caller_that_waits_for_several_calls_gets_all_answers() {
    let scene = scene("pause-caller");
    until_paused(|wait, id| {
        let (paused, actor) = (AtomicU32::new(0), format!("actor-{wait}"));
        let callee = scene.guest(&actor, "actor").args(["nap", &wait.to_string()]);
        let callee = callee.annotation("cwasi.timeout", LIFE_MAX);
        let callee = callee.annotation("cwasi.function", &actor);
        scene.start(callee.annotation("cwasi.role", "secondary"));
        let run = scene.guest(id, "fan").args(["answers", &actor, "3"]);
        let caller = run.annotation("cwasi.timeout", LIFE_MAX).spawn(&scene.containerd).unwrap();
        let _answered = pause_until_end(&scene, id, caller, &paused).success();
        paused.into_inner()
    });
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
