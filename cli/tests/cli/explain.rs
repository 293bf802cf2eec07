//! `cwasi explain`: the modes of a call, and the caller that a name means.

use std::fs;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::scene::Stage;
use super::stderr;

#[test]
fn a_decision_is_explained_mode_by_mode() {
    let stage = Stage::new("cli-explain");
    let (greeter, relay) = (stage.guest("greeter"), stage.guest("relay"));
    let functions = format!(
        "    greeter: {{module: {greeter}, role: secondary}}\n    \
         closed: {{module: {greeter}, role: secondary, allow: [nobody]}}\n    \
         relay: {{module: {relay}, role: secondary}}\n    \
         far: {{module: {relay}, role: secondary, mode: networked}}\n"
    );
    let file = stage.workflow("w", &functions);
    stage.ok(&["deploy", &file]);
    let text = stage.ok(&["explain", "relay", "greeter"]);
    for part in [
        "relay -> greeter: local (callee in the caller's own group)",
        "embedded   no   it is not embedded",
        "local      yes  callee in the caller's own group: w.greeter",
        "networked  no   this node has no redis_url",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let explain = |caller: &str, callee: &str| {
        let output = stage.cwasi().args(["explain", "--json", caller, callee]).output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), json)
    };
    let (code, refused) = explain("relay", "closed");
    assert_eq!((code, &refused["mode"]), (Some(1), &Value::Null));
    assert!(refused["modes"][1]["why"].as_str().unwrap().contains("cwasi.allow"), "{refused}");
    // Local would serve, and the caller's own mode forbids it.
    let (code, forced) = explain("far", "greeter");
    assert_eq!(
        (code, &forced["hint"], &forced["modes"][1]["serves"]),
        (Some(1), &"networked".into(), &true.into())
    );
    stage.fails(66, &["explain", "nobody", "greeter"]);
    stage.ok(&["rm", "--workflow", "w"]);
}

#[test]
fn callers_without_a_container_are_explained() {
    let stage = Stage::new("cli-explain-away");
    let (greeter, linker, texts) =
        (stage.guest("greeter"), stage.guest("linker"), stage.guest("texts"));
    let served =
        |more: &str| format!("    greeter: {{module: {greeter}, role: secondary{more}}}\n");
    let deployed = stage.workflow("w", &served(", allow: [gateway, hello]"));
    stage.ok(&["deploy", &deployed]);
    let local = |text: &str| text.contains("greeter: local (callee on this host)");
    assert!(local(&stage.ok(&["explain", "gateway", "greeter"])));
    // What `explain` says is what `invoke` does.
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    let refused = stage.ok_or(1, &["explain", "--host", "stranger", "greeter"]);
    assert!(refused.contains("no route") && refused.contains("cwasi.allow"), "{refused}");
    stage.fails(77, &["invoke", "--as", "stranger", "greeter"]);
    // The same workflow, with functions that are not deployed.
    let (hello, letters) = (stage.guest("hello-caller"), stage.guest("letters"));
    let planned = stage.workflow(
        "w",
        &format!(
            "{}    hello: {{module: {hello}}}\n    far: {{module: {hello}, mode: networked}}\n    \
             linker: {{module: {linker}, embed: {{texts: texts, letters: letters, greeter: greeter}}}}\n    \
             texts: {{module: {texts}, role: library}}\n    letters: {{module: {letters}, role: library}}\n",
            served("")
        ),
    );
    let explain =
        |caller: &str, code| stage.ok_or(code, &["explain", "-f", &planned, caller, "greeter"]);
    let text = explain("hello", 0);
    assert!(text.contains("hello -> greeter: local (callee in the caller's own group)"), "{text}");
    let text = explain("linker", 0);
    assert!(text.contains("linker -> greeter: embedded (callee embedded in the caller)"), "{text}");
    let module = hex::encode(Sha256::digest(fs::read(stage.guest("greeter")).unwrap()));
    for part in ["embedded image   ", "@sha256:", &format!("embedded module  sha256:{module}")] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let text = explain("far", 1);
    assert!(text.contains("cwasi.mode=networked of far allows no other mode"), "{text}");
    let text = stage.fails(66, &["explain", "-f", &planned, "texts", "greeter"]);
    assert!(text.contains("has no function texts that runs"), "{text}");
    stage.ok(&["rm", "greeter"]);
}

#[test]
fn a_name_means_a_caller_that_runs_in_the_pod_namespace() {
    const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
    let stage = Stage::new("cli-explain-name");
    let start = |id: &str, annotations: &[(&str, &str)]| {
        let secondary = stage.scene.guest(id, "relay").annotation("cwasi.role", "secondary");
        stage.scene.start(
            annotations.iter().fold(secondary, |run, (key, value)| run.annotation(key, value)),
        );
    };
    let explain = |arguments: &[&str]| {
        let mut words = vec!["explain", "--json"];
        words.extend(arguments);
        let output = stage.cwasi().args(words).arg("nobody").output().unwrap();
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), stderr(&output))
    };
    // The first one in containerd's list has ended.
    start("a-ended", &[(POD_NAMESPACE, "shop")]);
    stage.scene.kill("a-ended", "KILL");
    stage.scene.wait_stopped("a-ended");
    assert_eq!(explain(&["relay"]).0["container"], "a-ended");
    start("b-runs", &[(POD_NAMESPACE, "shop")]);
    let (found, said) = explain(&["relay"]);
    assert_eq!((&found["container"], said.as_str()), (&"b-runs".into(), ""));
    assert_eq!(explain(&["a-ended"]).0["container"], "a-ended");
    // Instances of one function, and those of another pod namespace.
    start("c-runs", &[(POD_NAMESPACE, "shop")]);
    start("d-other", &[(POD_NAMESPACE, "other")]);
    let text = stage.fails(2, &["explain", "relay", "nobody"]);
    let listed =
        "b-runs (pod namespace shop), c-runs (pod namespace shop), d-other (pod namespace other)";
    let expected = "relay is ambiguous: give --pod-namespace, or name one of these containers: ";
    assert!(text.contains(&format!("{expected}{listed}")), "{text}");
    for arguments in [&["relay", "--pod-namespace", "shop"][..], &["shop/relay"]] {
        let (found, said) = explain(arguments);
        assert_eq!(found["container"], "b-runs", "{arguments:?}");
        assert!(said.contains("relay has 2 containers; this is about b-runs"), "{said}");
    }
    assert_eq!(explain(&["relay", "--pod-namespace", "other"]).0["container"], "d-other");
    let text = stage.fails(66, &["explain", "none/relay", "nobody"]);
    assert!(text.contains("has no function relay in pod namespace none"), "{text}");
    stage.fails(2, &["explain", "shop/relay", "nobody", "--pod-namespace", "other"]);
    // Functions of two workflows have one name.
    start("e-flow", &[(POD_NAMESPACE, "other"), ("cwasi.workflow", "flow")]);
    let text = stage.fails(2, &["explain", "other/relay", "nobody"]);
    let listed = "d-other (pod namespace other), e-flow (pod namespace other, workflow flow)";
    assert!(text.contains(&format!("ambiguous: name one of these containers: {listed}")), "{text}");
}
