//! Tests the harness on a real containerd: one case with one call of each side, without looking at times.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cwasi-bench");

/// One containerd at a time: each looks for what it left in places that all share.
static TURN: Mutex<()> = Mutex::new(());

fn smoke(program: &Path, case: &str, out: &Path) -> (Output, Vec<Value>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output =
        Command::new(program).args(["smoke", "--case", case, "--out"]).arg(out).output().unwrap();
    let report = fs::read(out.join("report.json")).unwrap_or_else(|_| b"[]".to_vec());
    (output, serde_json::from_slice(&report).unwrap())
}

#[test]
fn a_case_gives_entries_for_each_baseline() {
    let out = tempfile::tempdir().unwrap();
    let case = "local-2MiB-inplace-touch-all";
    let (output, report) = smoke(Path::new(PROGRAM), case, out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for case in [case, "local-2MiB-inplace-touch-all-call"] {
        for baseline in ["uds-copy", "http-loopback", "redis"] {
            let mut entries = report.iter();
            let entry = entries.find(|one| one["case"] == case && one["baseline"] == baseline);
            let entry = entry.unwrap_or_else(|| panic!("no {case} beside {baseline}: {said}"));
            for number in ["ours_p50", "baseline_p50", "ratio"] {
                assert!(entry[number].as_f64().unwrap() > 0.0, "{entry}");
            }
        }
    }
    assert!(fs::read_to_string(out.path().join("report.html")).unwrap().contains(case));
}

#[test]
fn an_answer_comes_leased_and_sealed() {
    let out = tempfile::tempdir().unwrap();
    let (output, report) = smoke(Path::new(PROGRAM), "answer-2MiB", out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut entries = report.iter().filter(|one| one["case"] == "answer-2MiB-leased-call");
    let found = entries.any(|one| one["baseline"] == "sealed" && one["ratio"].is_f64());
    assert!(found, "{said}");
}

#[test]
fn a_payload_reaches_many_callees_and_many_payloads_one() {
    let out = tempfile::tempdir().unwrap();
    let (output, report) = smoke(Path::new(PROGRAM), "fan", out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for touch in ["-touch-none", "-touch-all"] {
        let out = format!("fanout-2MiB-3{touch}");
        assert!(
            report.iter().any(|one| one["case"] == out && one["baseline"] == "uds-copy"),
            "{said}"
        );
    }
    for case in ["fanin-2MiB-3-call", "fanin-2MiB-3-touch-all-call"] {
        let mut entries = report.iter().filter(|one| one["case"] == case);
        assert!(entries.any(|one| one["ratio"].as_f64().is_some()), "{said}");
    }
}

#[test]
fn http_overload_answers_every_client() {
    let out = tempfile::tempdir().unwrap();
    let (output, report) = smoke(Path::new(PROGRAM), "http-", out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for baseline in ["http-loopback", "http-watchdog"] {
        let mut entries = report.iter().filter(|one| one["case"] == "http-64B-2-connections");
        let entry = entries.find(|one| one["baseline"] == baseline);
        assert!(entry.is_some_and(|one| one["ratio"].as_f64().is_some()), "{baseline}: {said}");
    }
    let number = |case: &str| {
        let entry = report.iter().find(|one| one["case"] == case);
        entry.and_then(|one| one["ours_p50"].as_f64()).unwrap_or_else(|| panic!("{case}: {said}"))
    };
    assert_eq!(number("http-overload-unanswered"), 0.0, "{report:?}");
    assert!(number("http-overload-gateway-memory") > 0.0);
}

#[test]
fn a_component_takes_turns_with_a_core_module() {
    let out = tempfile::tempdir().unwrap();
    let (output, report) = smoke(Path::new(PROGRAM), "component-", out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for case in [
        "component-64B-call",
        "component-2MiB-read-call",
        "component-100MiB-passed-call",
        "component-embedded-64B-call",
    ] {
        let mut entries = report.iter().filter(|one| one["case"] == case);
        let entry = entries.find(|one| one["baseline"] == "core-module");
        assert!(entry.is_some_and(|one| one["ratio"].is_f64()), "{case}: {said}");
    }
    let entry = report.iter().find(|one| one["case"] == "component-http-hello-2-connections");
    let entry = entry.unwrap_or_else(|| panic!("{said}"));
    assert!(entry["ours_p50"].as_f64().unwrap() > 0.0, "{entry}");
    let (beside, conditions) = (&entry["baseline"], entry["conditions"].as_str().unwrap());
    let is_missing = conditions.contains("install wasmtime-cli");
    assert!(*beside == "wasmtime-serve" || (*beside == "none" && is_missing), "{entry}");
}

#[test]
fn calls_to_another_node_have_callers_and_a_first_one() {
    let out = tempfile::tempdir().unwrap();
    let (output, report) = smoke(Path::new(PROGRAM), "network-64B", out.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for (case, baseline) in [
        ("network-64B-call", "tls"),
        ("network-64B-2-callers", "http2"),
        ("network-64B-2-callers-call", "http2"),
        ("network-64B-first-call", "kept"),
    ] {
        let mut entries = report.iter().filter(|one| one["case"] == case);
        let entry = entries.find(|one| one["baseline"] == baseline);
        assert!(entry.is_some_and(|one| one["ratio"].is_f64()), "{case}: {said}");
    }
}

#[test]
fn curves_have_their_points() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["scale", "--smoke", "--case", "chain", "--out"]).arg(out.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report = fs::read(out.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let chain = &report["curves"][0];
    assert_eq!(chain["name"], "chain", "{report}");
    let points = chain["points"].as_array().unwrap();
    assert!(points.iter().map(|point| &point["at"]).eq([1, 2].iter()), "{report}");
    assert!(points.iter().all(|point| point["p50"].as_f64().unwrap() > 0.0), "{report}");
    assert!(fs::read_to_string(out.path().join("report.csv")).unwrap().lines().count() == 3);
}

#[test]
fn a_case_that_cannot_run_is_in_the_report_and_in_the_exit_code() {
    // A copy of the harness in a folder without the runtime.
    let dir = tempfile::tempdir().unwrap();
    let lonely = dir.path().join("cwasi-bench");
    fs::copy(PROGRAM, &lonely).unwrap();
    let (output, report) = smoke(&lonely, "local-2MiB-inplace-touch-all", dir.path());
    assert!(!output.status.success());
    let reasons: Vec<&str> = report.iter().map(|one| one["failed"].as_str().unwrap()).collect();
    assert!(
        reasons.len() >= 2 && reasons.iter().all(|one| one.contains("is missing")),
        "{reasons:?}"
    );
}

#[test]
fn an_unknown_case_is_an_error() {
    let out = tempfile::tempdir().unwrap();
    let (output, _) = smoke(Path::new(PROGRAM), "no-such-case", out.path());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no case's name contains `no-such-case`")
    );
    assert!(!output.status.success());
}
