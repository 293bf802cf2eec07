//! End to end on a real containerd: what a call between two functions promises. One test per promise; every
//! test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use cwasi_testbed::processes::Process;
use cwasi_testbed::run::{Outcome, Running};
use cwasi_testbed::scene::{Scene, wait_for};

use crate::scene;

/// Runs the probe as a primary with these arguments.
fn probe(scene: &Scene, id: &str, args: &[&str]) -> Outcome {
    scene.run(scene.guest(id, "probe").args(args.iter().copied()))
}

/// Starts the probe attached, and goes on.
fn probe_in_background(scene: &Scene, id: &str, args: &[&str]) -> Running {
    scene.guest(id, "probe").args(args.iter().copied()).spawn(&scene.containerd).unwrap()
}

/// Starts a secondary with one worker and these annotations; its function is called `id`.
fn secondary(scene: &Scene, id: &str, guest: &str, annotations: &[(&str, &str)]) {
    let defaults =
        [("cwasi.role", "secondary"), ("cwasi.function", id), ("cwasi.concurrency", "1")];
    let mut run = scene.guest(id, guest);
    // Given twice, the later one counts.
    for (key, value) in defaults.iter().chain(annotations) {
        run = run.annotation(key, value);
    }
    scene.start(run);
}

/// Starts a guest whose call keeps the one worker of `svc`, which has no place to wait in: again, when a look whether
/// it does was in its way.
fn keep_busy(scene: &Scene, guest: &str, args: &[&str]) -> Running {
    let start = |tries: u32| {
        let run = scene.guest(&format!("p-{tries}"), guest).args(args.iter().copied());
        run.spawn(&scene.containerd).unwrap()
    };
    let mut tries = 0;
    let mut caller = start(tries);
    wait_for("svc to be overloaded", || {
        tries += 1;
        if caller.has_ended() {
            caller = start(tries);
        }
        let outcome = probe(scene, &format!("try-{tries}"), &["calls", "svc", "x"]);
        outcome.text().starts_with("overloaded").then_some(())
    });
    caller
}

fn daemons(scene: &Scene) -> Vec<Process> {
    let mut all = scene.processes();
    all.retain(|process| process.command.contains("cwasi-shim"));
    all
}

#[test]
fn a_primary_calls_a_reactor() {
    let scene = scene("reactor");
    scene.secondary("server", "server");
    assert_eq!(probe(&scene, "p", &["call", "server", "hello"]).success().text(), "hello");
}

#[test]
fn the_sdks_example_of_two_functions_runs() {
    let scene = scene("sdk");
    scene.start(scene.guest("greeter", "greeter").annotation("cwasi.role", "secondary"));
    let outcome = scene.run(scene.guest("hello", "hello-caller").args(["Ada", "Grace"]));
    assert_eq!(outcome.success().text(), "Hello, Ada!\nHello, Grace!\n");
}

#[test]
fn the_papers_annotation_makes_a_secondary_too() {
    let scene = scene("paper");
    scene.start(scene.guest("server", "server").annotation("cwasi.secondary.function", "true"));
    assert_eq!(probe(&scene, "p", &["call", "server", "hello"]).success().text(), "hello");
}

#[test]
fn payloads_of_every_size_come_back_unchanged() {
    let scene = scene("sizes");
    scene.secondary("server", "server");
    scene.secondary("echo", "echo");
    for target in ["server", "echo"] {
        for size in [0, 1, 65_535, 65_536, 65_537, 1_000_003, 104_857_600] {
            let id = format!("{target}-{size}");
            let outcome = probe(&scene, &id, &["call-size", target, &size.to_string()]);
            assert_eq!(outcome.success().text(), format!("{size} bytes came back\n"), "{target}");
        }
    }
}

#[test]
fn calls_go_on_from_callee_to_callee() {
    let scene = scene("chain");
    scene.secondary("a", "server");
    scene.secondary("b", "server");
    scene.secondary("c", "filter");
    let outcome = probe(&scene, "p", &["call", "a", "!call b !call c deep"]);
    assert_eq!(outcome.success().text(), "DEEP");
}

#[test]
fn the_callee_knows_who_calls_and_what_it_is() {
    let scene = scene("context");
    scene.start(
        scene
            .guest("c", "server")
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", "callee")
            .annotation("cwasi.workflow", "w"),
    );
    let run = scene.guest("p", "probe").annotation("cwasi.function", "the-caller");
    let run = run.annotation("cwasi.workflow", "w").args([
        "calls",
        "callee",
        "!context caller",
        "!context function",
        "!context workflow",
        "!context attempt",
    ]);
    let text = scene.run(run).success().text();
    assert_eq!(text, "ok: the-caller\nok: callee\nok: w\nok: 1\n");
}

#[test]
fn a_caller_that_is_not_allowed_is_refused() {
    let scene = scene("allow");
    secondary(&scene, "server", "server", &[("cwasi.allow", "friend")]);
    let call = |id: &str, function: &str| {
        let run = scene.guest(id, "probe").annotation("cwasi.function", function);
        scene.run(run.args(["call", "server", "x"]))
    };
    let _allowed = call("friend", "friend").success();
    let refused = call("stranger", "stranger");
    assert_eq!(refused.code, cwasi_abi::Errno::Refused.code(), "{}", refused.stderr);
    assert!(refused.stderr.contains("cwasi.allow"), "{}", refused.stderr);
}

#[test]
fn each_misbehaviour_is_its_own_requests_error_and_the_next_is_served() {
    let scene = scene("misbehave");
    for guest in ["server", "filter"] {
        secondary(&scene, guest, guest, &[("cwasi.timeout", "6s")]);
        let orders = ["!trap", "!oob", "!recurse", "!loop", "!block", "!exit 3"];
        let wanted = ["trapped", "trapped", "trapped", "timeout", "timeout", "failed"];
        let mut args = vec!["calls", guest];
        for order in orders {
            args.extend([order, "next"]);
        }
        let text = probe(&scene, &format!("p-{guest}"), &args).success().text();
        let lines: Vec<&str> = text.lines().collect();
        let next = if guest == "server" { "ok: next" } else { "ok: NEXT" };
        // A message may have several lines (a guest's stack): look for the beginnings, in order.
        let mut rest = lines.iter();
        for (order, end) in orders.iter().zip(wanted) {
            assert!(rest.any(|line| line.starts_with(end)), "{guest} {order}:\n{text}");
            assert!(rest.any(|line| *line == next), "{guest} after {order}:\n{text}");
        }
    }
}

#[test]
fn a_thousand_traps_harm_no_other_call() {
    let scene = scene("traps");
    secondary(&scene, "fragile", "server", &[("cwasi.workflow", "w")]);
    secondary(&scene, "steady", "server", &[("cwasi.workflow", "w")]);
    let steady = probe_in_background(&scene, "p-steady", &["repeat", "steady", "1000", "x"]);
    let fragile = probe(&scene, "p-fragile", &["repeat", "fragile", "1000", "!trap"]);
    assert_eq!(fragile.success().text(), "trapped 1000\n");
    assert_eq!(steady.finish().unwrap().success().text(), "ok 1000\n");
    assert_eq!(probe(&scene, "after", &["call", "fragile", "x"]).success().text(), "x");
}

#[test]
fn what_exceeds_workers_and_queue_is_overloaded_at_once() {
    /// Callers above the bounds.
    const EXCESS: usize = 2;
    let scene = scene("overload");
    for (workers, queue) in [(1, 0), (1, 2), (3, 0)] {
        let name = format!("w{workers}q{queue}");
        let (workers_text, queue_text) = (workers.to_string(), queue.to_string());
        let bounds = [("cwasi.concurrency", &*workers_text), ("cwasi.queue", &*queue_text)];
        secondary(&scene, &name, "server", &bounds);
        let mut callers: Vec<Running> = (0..workers + queue + EXCESS)
            .map(|index| {
                let id = format!("{name}-{index}");
                probe_in_background(&scene, &id, &["calls", &name, "!block"])
            })
            .collect();
        let mut ended = Vec::new();
        wait_for(&format!("{EXCESS} callers of {name} to be refused"), || {
            ended.extend(callers.extract_if(.., |caller| caller.has_ended()));
            (ended.len() >= EXCESS).then_some(())
        });
        assert_eq!(ended.len(), EXCESS, "{name}");
        for caller in ended {
            let text = caller.finish().unwrap().success().text();
            assert!(text.starts_with("overloaded"), "{name}: {text}");
        }
        scene.remove(&name);
        for caller in callers {
            let text = caller.finish().unwrap().success().text();
            assert!(
                text.starts_with("broken") || text.starts_with("unreachable"),
                "{name}: {text}"
            );
        }
    }
}

#[test]
fn a_killed_callee_fails_its_call_only() {
    let scene = scene("killed");
    let function = [("cwasi.function", "svc"), ("cwasi.queue", "0")];
    secondary(&scene, "svc-1", "server", &function);
    let caller = keep_busy(&scene, "probe", &["calls", "svc", "!block", "after"]);
    secondary(&scene, "svc-2", "server", &function);
    let pid = nix::unistd::Pid::from_raw(scene.pid("svc-1"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    let text = caller.finish().unwrap().success().text();
    let mut lines = text.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("broken")), "{text}");
    assert_eq!(lines.next(), Some("ok: after"), "{text}");
    scene.wait_stopped("svc-1");
    assert_eq!(scene.remove("svc-1"), 137);
    assert_eq!(probe(&scene, "next", &["call", "svc", "x"]).success().text(), "x");
}

#[test]
fn calls_wait_for_a_paused_function() {
    let scene = scene("paused");
    let (notes, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(server.mount(log.path(), "/log", "rw"));
    secondary(&scene, "hasty", "server", &[("cwasi.timeout", "2s")]);
    // One that calls all the time, one that comes later, and one that waits for two seconds only.
    let busy = scene.guest("busy", "probe").mount(notes.path(), "/out", "rw");
    let busy = busy.args(["number", "server", "/out"]).spawn(&scene.containerd).unwrap();
    let ends = || {
        let text = std::fs::read_to_string(notes.path().join("ended")).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    wait_for("calls", || (ends().len() > 20).then_some(()));
    let _paused = scene.ctr(["task", "pause", "server"]).success();
    let before = ends().len();
    let mut patient = probe_in_background(&scene, "patient", &["call", "server", "hello"]);
    // Its request ends with the call that it makes, or a moment later by itself.
    let hasty = probe(&scene, "through-hasty", &["calls", "hasty", "!call server x"]).success();
    assert!(
        !hasty.text().starts_with("ok") && hasty.text().contains("timeout"),
        "{}",
        hasty.text()
    );
    assert_eq!(scene.status("server").as_deref(), Some("PAUSED"));
    assert!(!patient.has_ended() && ends().len() <= before + 1, "nobody answers");
    let _resumed = scene.ctr(["task", "resume", "server"]).success();
    assert_eq!(patient.finish().unwrap().success().text(), "hello");
    wait_for("more calls", || (ends().len() > before + 20).then_some(()));
    std::fs::write(notes.path().join("stop"), "").unwrap();
    let _ended = busy.finish().unwrap().success();
    let executed = std::fs::read_to_string(log.path().join("executed")).unwrap();
    assert_eq!(executed.lines().count(), ends().len(), "each ran once");
    for (number, end) in ends().iter().enumerate() {
        assert_eq!(*end, format!("{number} ok"), "a call was lost");
    }
}

#[test]
fn an_idempotent_call_whose_callee_is_killed_is_made_again() {
    let scene = scene("idempotent");
    let function = [("cwasi.function", "svc"), ("cwasi.queue", "0")];
    secondary(&scene, "svc-1", "server", &function);
    let caller = keep_busy(&scene, "caller", &["svc", "idempotent", "!block"]);
    // Says the payload instead of blocking.
    secondary(&scene, "svc-2", "actor", &function);
    scene.kill("svc-1", "KILL");
    assert_eq!(caller.finish().unwrap().success().text(), "!block\n");
    scene.wait_stopped("svc-1");
    assert_eq!(scene.remove("svc-1"), 137);
}

#[test]
fn a_stopped_secondary_is_no_longer_found() {
    let scene = scene("stopped");
    scene.secondary("server", "server");
    let _answered = probe(&scene, "before", &["call", "server", "x"]).success();
    scene.kill("server", "TERM");
    scene.wait_stopped("server");
    let outcome = probe(&scene, "after", &["call", "server", "x"]);
    assert_eq!(outcome.code, cwasi_abi::Errno::NoSuchFunction.code(), "{}", outcome.stderr);
}

#[test]
fn functions_of_one_workflow_share_a_shim_that_outlives_the_first() {
    let scene = scene("group");
    secondary(&scene, "first", "server", &[("cwasi.workflow", "w")]);
    secondary(&scene, "second", "server", &[("cwasi.workflow", "w")]);
    assert_eq!(daemons(&scene).len(), 1, "{:?}", daemons(&scene));
    scene.remove("first");
    assert_eq!(scene.status("second").as_deref(), Some("RUNNING"));
    let run = scene.guest("p", "probe").annotation("cwasi.workflow", "w");
    assert_eq!(scene.run(run.args(["call", "second", "x"])).success().text(), "x");
}

#[test]
fn each_edge_is_recorded_with_its_mode_and_reason() {
    let scene = scene("edges");
    secondary(&scene, "server", "server", &[("cwasi.workflow", "w")]);
    let run = scene.guest("p", "probe").annotation("cwasi.workflow", "w");
    let run = run.annotation("cwasi.function", "start");
    let _ended = scene.run(run.args(["repeat", "server", "5", "12345678"])).success();
    scene.remove("server");
    let edges = scene.node.state().join("edges");
    let text = wait_for("the group's edges", || {
        let files = std::fs::read_dir(&edges).ok()?.flatten();
        files
            .filter_map(|file| std::fs::read_to_string(file.path()).ok())
            .find(|text| text.contains(r#""start""#) && text.contains(r#""server""#))
    });
    let edges: serde_json::Value = serde_json::from_str(&text).unwrap();
    let edge = &edges[0];
    assert_eq!(edge["caller"], "start");
    assert_eq!(edge["callee"], "server");
    assert_eq!(edge["mode"], "local");
    assert_eq!(edge["calls"], 5);
    assert_eq!(edge["errors"], 0);
    assert_eq!(edge["request_bytes"], 40);
    assert_eq!(edge["response_bytes"], 40);
    assert!(edge["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{text}");
}
