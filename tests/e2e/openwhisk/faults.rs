//! What a platform or a stranger may do wrong, and what may happen to an action.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use cwasi_config::Engine;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{GUESTS, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::fixture::{Action, PORT, base64, guest, module, payload, post, scene_on};
use crate::scene;

fn refused(answer: &(u16, Value), status: u16, part: &str) {
    let text = answer.1["error"].as_str().unwrap_or_default();
    assert!(answer.0 == status && text.contains(part), "not {status} with {part}: {answer:?}");
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[test]
fn activations_that_fail_leave_the_action_as_it_was() {
    let scene = scene("whisk-faults");
    let run = scene.guest("faults", "action").annotation("cwasi.max-payload", "1MiB");
    let action = Action::start(&scene, "faults", run);
    assert_eq!(action.post("/init", "{}").0, 200);
    let works = || assert_eq!(action.run(&json!({ "do": "nothing" })), (200, json!({})));
    let failed = action.run(&json!({ "do": "fail" }));
    assert_eq!(failed, (200, json!({ "error": "the action failed" })));
    refused(&action.run(&json!({ "do": "trap" })), 502, "the function crashed");
    works();
    refused(&action.post("/run", "not JSON"), 400, "it is no JSON");
    refused(&action.post("/run", r#"{"value": [1]}"#), 400, "`value` it is no JSON object");
    refused(&action.announce("/run", 2 << 20), 413, "larger than 1114112 bytes");
    let with_deadline = |what: &str, deadline: u64| {
        json!({ "value": { "do": what }, "deadline": deadline.to_string() }).to_string()
    };
    let passed = with_deadline("nothing", now_ms() - 1);
    refused(&action.post("/run", passed), 504, "the deadline of the activation has passed");
    let soon = with_deadline("spin", now_ms() + 3000);
    refused(&action.post("/run", soon), 504, "did not answer in time");
    works();
    let pid = action.pid;
    let spinning =
        std::thread::spawn(move || post(pid, PORT, "/run", r#"{"value": {"do": "spin"}}"#.into()));
    let busy = wait_for("the worker that spins", || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let is_busy = |worker: &&str| {
            let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
            let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let user_ticks = fields.get(11).and_then(|ticks| ticks.parse::<u64>().ok());
            user_ticks.is_some_and(|ticks| ticks > 20)
        };
        let busy = children.split_whitespace().find(is_busy)?;
        Some(busy.parse::<i32>().unwrap())
    });
    kill(Pid::from_raw(busy), Signal::SIGKILL).unwrap();
    refused(&spinning.join().unwrap(), 502, "the function was lost while it ran");
    works();
    let output = action.output();
    assert_eq!(output.ends, (7, 7), "{}", output.stderr);
}

#[test]
fn code_comes_as_a_component_and_to_containers_of_other_users() {
    // `ctr run` of containerd 1.6 sets no user.
    let scene = scene_on(ContainerdVersion::V2, "whisk-kinds");
    let strict = &["--user", "1000:1001", "--seccomp", "--read-only"][..];
    for (id, code, flags) in [
        ("component", guest("wasm32-wasip2", "component_server.wasm"), &[][..]),
        ("strict-component", guest("wasm32-wasip2", "component_server.wasm"), strict),
        ("strict-module", module(), strict),
    ] {
        let run = scene.image(GUESTS, id).args(["none"]);
        let run = flags.iter().fold(run, |run, flag| run.flag(*flag));
        let action = Action::start(&scene, id, run);
        action.init_code(&code, "main");
        for number in 0..3 {
            let parameters = json!({ "number": number });
            assert_eq!(action.run(&parameters), (200, parameters), "{id}");
        }
        assert_eq!(action.output().ends, (3, 3), "{id}");
    }
}

#[test]
fn code_runs_in_the_engine_of_the_container() {
    let scene = scene("whisk-engines");
    for engine in Engine::ALL {
        let id = engine.name();
        let run = scene.image(GUESTS, id).args(["none"]).annotation("cwasi.engine", id);
        let action = Action::start(&scene, id, run);
        if engine != Engine::Wasmtime {
            let component = base64(&guest("wasm32-wasip2", "component_server.wasm"));
            refused(&action.init(&payload(&component, "main")), 502, "engine");
        }
        action.init_code(&module(), "main");
        for number in 0..3 {
            let parameters = json!({ "number": number });
            assert_eq!(action.run(&parameters), (200, parameters), "{engine}");
        }
    }
}

#[test]
fn delivered_code_runs_behind_the_barriers_of_every_function() {
    let scene = scene("whisk-barriers");
    let action = Action::empty(&scene, "barriers");
    let field = |pid: &str, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    };
    let init = action.pid.to_string();
    wait_for("init without privileges to gain", || {
        (field(&init, "NoNewPrivs") == "1").then_some(())
    });
    assert_eq!(field(&init, "Seccomp"), "0");
    action.init_code(&module(), "main");
    let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
    let processes: Vec<_> = children.split_whitespace().chain([init.as_str()]).collect();
    assert!(processes.len() > 1);
    for pid in processes {
        // A filter.
        assert_eq!((field(pid, "Seccomp").as_str(), field(pid, "NoNewPrivs").as_str()), ("2", "1"));
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        assert!(!open.any(|target| target.to_string_lossy().contains("cwasi-code")));
    }
}

#[test]
fn an_action_that_waits_for_its_code_ends_as_any_other() {
    let scene = scene("whisk-ends");
    let action = Action::empty(&scene, "waits");
    scene.kill("waits", "TERM");
    let outcome = action.running.finish().unwrap();
    assert_eq!((outcome.code, outcome.text()), (128 + Signal::SIGTERM as i32, String::new()));
    let action = Action::empty(&scene, "has-code");
    action.init_code(&module(), "main");
    scene.kill("has-code", "TERM");
    let outcome = action.running.finish().unwrap();
    assert_eq!((outcome.code, outcome.text()), (128 + Signal::SIGTERM as i32, String::new()));
    let run = scene.guest("no-port", "action").annotation("cwasi.role", "secondary");
    let outcome = scene.run(run.annotation("cwasi.protocol", "openwhisk"));
    assert!(outcome.stderr.contains("needs a port, such as cwasi.http=8080"), "{}", outcome.stderr);
}
