//! `cwasi trace` on a real containerd: the runs of a workflow and single calls, as text, JSON and HTML.

use std::fs;

use serde_json::Value;

use super::scene::Stage;
use super::{stderr, stdout};

/// The trace's id that a command says on stderr.
fn id_of(text: &str) -> &str {
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.windows(2).position(|pair| pair == ["cwasi", "trace"]);
    words[at.unwrap_or_else(|| panic!("{text}")) + 2]
}

#[test]
fn a_run_has_a_waterfall() {
    let stage = Stage::new("cli-trace");
    let run: Value = serde_json::from_str(&stage.ok(&["run", "--json", &stage.hello()])).unwrap();
    let id = run["run"].as_str().unwrap();
    let list: Value = serde_json::from_str(&stage.ok(&["trace", "--json"])).unwrap();
    let listed = list.as_array().unwrap().iter().find(|line| line["trace"] == id).unwrap();
    // The run, the primary, and two calls with two sides.
    assert_eq!((&listed["spans"], &listed["errors"]), (&6.into(), &0.into()), "{listed}");
    assert_eq!(listed["title"], "cwasi runs hello");
    assert!(stage.ok(&["trace"]).contains(&id[..8]));
    let text = stage.ok(&["trace", &id[..8]]);
    let starts: Vec<&str> =
        text.lines().skip(2).map(|line| line.split("  local").next().unwrap()).collect();
    assert!(starts[0].starts_with("cwasi runs hello "), "{text}");
    assert!(starts[1].starts_with("  run hello "), "{text}");
    assert!(starts[2].starts_with("    hello calls greeter"), "{text}");
    assert!(starts[3].starts_with("      greeter "), "{text}");
    let html = stage.folder.path().join("trace.html");
    stage.ok(&["trace", id, "--html", html.to_str().unwrap()]);
    let html = fs::read_to_string(html).unwrap();
    assert_eq!(html.matches("<details").count(), 6);
    let spans: Value = serde_json::from_str(&stage.ok(&["trace", id, "--json"])).unwrap();
    assert_eq!(spans["spans"][2]["span"]["reason"], "callee in the caller's own group");
    assert!(stage.fails(2, &["trace", "abc"]).contains("at least 4 digits"));
    assert!(stage.fails(66, &["trace", "ffffffffffff0000"]).contains("no trace"));
}

#[test]
fn a_call_is_traced_when_it_is_asked_for() {
    let stage = Stage::new("cli-trace-call");
    stage.ok(&["deploy", &stage.hello()]);
    let invoke = |arguments: &[&str]| {
        let output = stage.cwasi().args(arguments).output().unwrap();
        assert!(output.status.success() && stdout(&output) == "Hello, Ada!", "{output:?}");
        stderr(&output)
    };
    assert_eq!(invoke(&["invoke", "greeter", "--data", "Ada"]), "");
    let told = invoke(&["invoke", "greeter", "--data", "Ada", "--trace"]);
    let id = id_of(&told);
    let spans = cwasi_testbed::scene::wait_for("the callee's span", || {
        let spans: Value = serde_json::from_str(&stage.ok(&["trace", id, "--json"])).unwrap();
        (spans["spans"].as_array()?.len() == 2).then_some(spans)
    });
    assert_eq!(spans["spans"][0]["service"], "gateway");
    assert_eq!(
        (&spans["spans"][1]["service"], &spans["spans"][1]["depth"]),
        (&"greeter".into(), &1.into())
    );
    stage.ok(&["rm", "--workflow", "hello"]);
}
