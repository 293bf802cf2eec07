//! Verbs about functions that run, modules, images and nodes.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use cwasi_config::{DEFAULT_ENGINE, Engine};
use serde_json::{Value, json};

use super::scene::Stage;
use super::{cwasi, stderr, stdout};

#[test]
fn a_function_is_called_and_its_end_is_the_exit_code() {
    let stage = Stage::new("cli-invoke");
    stage.ok(&["deploy", &stage.hello()]);
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    let file = stage.folder.path().join("name");
    fs::write(&file, "Grace").unwrap();
    assert_eq!(
        stage.ok(&["invoke", "greeter", "-d", &format!("@{}", file.display())]),
        "Hello, Grace!"
    );
    // Above what travels in a frame, from stdin.
    let mut invoke = stage.cwasi();
    let invoke = invoke.args(["invoke", "greeter", "-v", "-d", "-"]);
    let mut child =
        invoke.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'a'; 200_000]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout.len(), 200_000 + "Hello, !".len());
    assert!(stderr(&output).contains("local (callee on this host)"), "{}", stderr(&output));
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let called = json(&stage.ok(&["invoke", "--json", "greeter", "-d", "Ada"]));
    assert_eq!((&called["outcome"], &called["errno"]), (&"ok".into(), &0.into()), "{called}");
    assert_eq!(
        (&called["mode"], &called["payload"]),
        (&"local".into(), &"Hello, Ada!".into()),
        "{called}"
    );
    assert!(called["duration_ms"].as_f64() > Some(0.0), "{called}");
    let missing = json(&stage.ok_or(66, &["invoke", "--json", "greetr"]));
    assert_eq!((&missing["outcome"], &missing["errno"]), (&"no such function".into(), &3.into()));
    let lines = stage.ok(&["logs", "--json", "greeter"]);
    let lines: Vec<_> = lines.lines().map(json).collect();
    let line = lines.iter().find(|line| line["text"] == "greeting Ada for gateway");
    let line = line.unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!((&line["function"], &line["level"]), (&"greeter".into(), &"INFO".into()), "{line}");
    assert!(line["time"].is_string() && line["invocation"].is_string(), "{line}");
    let text = stage.fails(66, &["invoke", "greetr"]);
    assert!(text.contains("registered there: greeter"), "{text}");
    // Not UTF-8: the function's own error.
    fs::write(&file, [0xff]).unwrap();
    stage.fails(1, &["invoke", "greeter", "-d", &format!("@{}", file.display())]);
    stage.ok(&["rm", "greeter"]);
}

#[test]
fn a_function_is_scaled() {
    let stage = Stage::new("cli-scale");
    stage.ok(&["deploy", &stage.hello()]);
    assert_eq!(
        stage.ok(&["scale", "greeter", "3"]),
        "hello.greeter.2 started\nhello.greeter.3 started\n"
    );
    for id in ["hello.greeter", "hello.greeter.2", "hello.greeter.3"] {
        assert_eq!(stage.scene.status(id).as_deref(), Some("RUNNING"), "{id}");
    }
    assert_eq!(
        stage.ok(&["scale", "greeter", "1"]),
        "hello.greeter.2 removed\nhello.greeter.3 removed\n"
    );
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let change = |container: &str, state: &str| serde_json::json!([{ "container": container, "state": state }]);
    let scaled = json(&stage.ok(&["scale", "--json", "greeter", "2"]));
    assert_eq!(scaled, change("hello.greeter.2", "started"));
    let removed = json(&stage.ok(&["rm", "--json", "hello.greeter.2"]));
    assert_eq!(removed, change("hello.greeter.2", "removed"));
    // A container that has ended does not count.
    stage.scene.kill("hello.greeter", "KILL");
    stage.scene.wait_stopped("hello.greeter");
    assert_eq!(stage.ok(&["scale", "greeter", "1"]), "hello.greeter started\n");
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    assert_eq!(stage.ok(&["scale", "greeter", "0"]), "hello.greeter stopped\n");
    assert_eq!(stage.scene.status("hello.greeter").as_deref(), Some("STOPPED"));
    stage.fails(66, &["invoke", "greeter", "--data", "Ada"]);
    let again = stage.ok(&["scale", "greeter", "2"]);
    assert_eq!(again, "hello.greeter started\nhello.greeter.2 started\n");
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    stage.ok(&["rm", "--workflow", "hello"]);
    assert!(stage.fails(66, &["scale", "greeter", "2"]).contains("cwasi deploy FILE"));
}

#[test]
fn what_runs_a_function_besides_calls_is_explained_and_inspected() {
    let stage = Stage::new("cli-activation");
    let (hello, greeter) = (stage.guest("hello-caller"), stage.guest("greeter"));
    let file = stage.workflow(
        "w",
        &format!(
            "    hello: {{module: {hello}, schedule: '0 3 * * *'}}\n    \
             greeter: {{module: {greeter}, role: secondary, scale: {{min: 0, max: 3, calls: 8, cooldown: 5m}}, \
             triggers: [{{redis: {{stream: shop:orders}}}}]}}\n    \
             plain: {{module: {greeter}, role: secondary}}\n"
        ),
    );
    let text = stage.ok_or(1, &["explain", "-f", &file, "hello", "greeter"]);
    let scale =
        "0 to 3 pods on a cluster, by calls, 8 in a pod, the last one until 300 s without a call";
    let lines = format!(
        "  schedule of hello: 0 3 * * *\n  trigger of greeter: redis-stream:shop:orders\n  \
         scale of greeter: {scale}\n  \
         workers of greeter: 1, messages of cwasi.triggers run one after the other\n"
    );
    assert!(text.ends_with(&lines), "{text}");
    let text = stage.ok(&["inspect", "-f", &file, "greeter"]);
    let lines = format!("trigger: redis-stream:shop:orders\nscale: {scale}\n");
    assert!(text.contains(&lines) && text.contains("guest ABI: version 1"), "{text}");
    let json = stage.ok(&["inspect", "--json", "-f", &file, "hello"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "triggers": [], "schedule": "0 3 * * *", "scale": null, "workers": null
    });
    assert_eq!((&json["activation"], &json["kind"]), (&expected, &"command".into()));
    stage.fails(66, &["inspect", "-f", &file, "nobody"]);
    // A container says what its annotations say, and has the module of its image.
    let plain = format!("    plain: {{module: {greeter}, role: secondary}}\n");
    stage.ok(&["deploy", &stage.workflow("w", &plain)]);
    let inspected = |target: &str| -> Value {
        serde_json::from_str(&stage.ok(&["inspect", "--json", target])).unwrap()
    };
    let workers = serde_json::json!({ "least": 1, "most": 32, "fixed": null });
    let none = serde_json::json!({
        "triggers": [], "schedule": null, "scale": null, "workers": workers
    });
    assert_eq!(
        (&inspected("plain")["activation"], &inspected("w.plain")["kind"]),
        (&none, &"reactor".into())
    );
    assert_eq!(inspected(&greeter)["activation"], Value::Null);
    stage.ok(&["rm", "plain"]);
}

#[test]
fn a_module_is_inspected_as_file_and_in_an_image() {
    let stage = Stage::new("cli-inspect");
    let greeter = stage.guest("greeter");
    let text = stage.ok(&["inspect", &greeter]);
    for part in ["reactor", "guest ABI: version 1", "cwasi_handle", "cwasi.log", "the engine"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let whole = wat::parse_str(stage.ok(&["inspect", "--text", &greeter])).unwrap();
    for kind in ["plain", "layer"] {
        let name = format!("localhost/{kind}:1");
        stage.ok(&["image", "build", "--kind", kind, "--tag", &name, &greeter]);
        assert_eq!(wat::parse_str(stage.ok(&["inspect", "--text", &name])).unwrap(), whole);
        let facts: Value = serde_json::from_str(&stage.ok(&["inspect", "--json", &name])).unwrap();
        assert_eq!(facts["kind"], "reactor", "{kind}");
        // And it runs.
        let file = stage
            .workflow("images", &format!("    greeter: {{image: '{name}', role: secondary}}\n"));
        stage.ok(&["deploy", &file]);
        assert_eq!(stage.ok(&["invoke", "greeter", "-d", "Ada"]), "Hello, Ada!", "{kind}");
        stage.ok(&["rm", "greeter"]);
    }
    stage.fails(66, &["inspect", "localhost/nothing:1"]);
    let wrong = stage.folder.path().join("wrong.wasm");
    fs::write(&wrong, wat::parse_str("(module (import \"cwasi\" \"later\" (func)))").unwrap())
        .unwrap();
    let text = stage.ok_or(1, &["inspect", &wrong.display().to_string()]);
    assert!(text.contains("nobody: ABI version 1") && text.contains("refused: "), "{text}");
    fs::write(&wrong, "text").unwrap();
    let text = stage.fails(65, &["inspect", &wrong.display().to_string()]);
    assert!(text.contains("is not a WebAssembly module"), "{text}");
}

#[test]
fn faults_are_found_before_a_run() {
    let stage = Stage::new("cli-lint");
    assert_eq!(stage.ok(&["lint", &stage.hello()]), "");
    let (greeter, linker, hello) =
        (stage.guest("greeter"), stage.guest("linker"), stage.guest("hello-caller"));
    let file = stage.workflow(
        "w",
        &format!(
            "    a: {{module: {greeter}}}\n    \
             b: {{module: {linker}, role: secondary, isolation: instance}}\n    \
             c: {{module: {greeter}, role: secondary, replicas: 2, fanIn: {{parts: caller}}}}\n    \
             d: {{image: 'localhost/nothing:1', role: secondary}}\n    \
             e: {{module: nothing.wasm, mounts: [{{source: /does/not/exist, target: /x}}]}}\n    \
             f: {{module: {greeter}, role: secondary, maxPayload: 64MiB, memory: 1MiB}}\n    \
             g: {{module: {hello}, embed: {{h: h}}}}\n    \
             h: {{module: {hello}, embed: {{g: g}}}}\n    \
             i: {{module: {hello}, mounts: [{{source: /tmp, target: /.hid}}]}}\n    \
             j: {{module: {hello}, network: ['db.example:5432', '127.0.0.1:80']}}\n    \
             k: {{module: {greeter}, role: secondary, http: 8080}}\n    \
             l: {{module: {greeter}, role: secondary, http: 8080, hostNetwork: true}}\n    \
             m: {{module: {greeter}, role: secondary, http: 8080, hostNetwork: true, scale: {{min: 0, max: 2}}}}\n    \
             n: {{module: {greeter}, role: secondary, triggers: [{{redis: {{stream: orders}}}}]}}\n"
        ),
    );
    let text = stage.ok_or(1, &["lint", &file]);
    for part in [
        "w.yaml:6:5: a: its module is a reactor: a primary needs `_start`",
        "7:5: b: its module imports from `texts`, which `embed` does not have",
        "7:5: b: isolation needs a reactor",
        "8:5: c: fanIn with replicas",
        "9:5: d: image localhost/nothing:1 is not in containerd's namespace",
        "10:5: e: module ",
        "10:5: e: mount /x: /does/not/exist does not exist",
        "11:5: f: maxPayload (64.0 MiB) does not fit into memory (1.0 MiB)",
        "12:5: g: it embeds itself",
        "13:5: h: it embeds itself",
        "14:5: i: mount /.hid: the target has a part that begins with a dot",
        "15:5: j: `network` allows db.example:5432, and its container has no network but",
        "16:5: k: `http: 8080` listens in its container, which nobody reaches",
        "18:5: m: `http: 8080` is not reached while it has no pod (`scale.min: 0`)",
        "19:5: n: cwasi.triggers=redis-stream:orders needs a Redis, and this node has none",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("17:5"), "{text}");
    let (texts, letters) = (stage.guest("texts"), stage.guest("letters"));
    let embedding = stage.workflow(
        "v",
        &format!(
            "    a: {{module: {hello}, embed: {{b: 'localhost/nothing:1'}}}}\n    \
             c: {{module: {linker}, embed: {{texts: 'localhost/nothing:1'}}}}\n    \
             d: {{module: {linker}, embed: {{texts: texts, letters: letters}}}}\n    \
             texts: {{module: {texts}, role: library}}\n    \
             letters: {{module: {letters}, role: library}}\n"
        ),
    );
    let text = stage.ok_or(1, &["lint", &embedding]);
    let lines: Vec<_> = text.lines().collect();
    let [of_a, of_c] = lines[..] else { panic!("{text}") };
    assert!(of_a.contains("6:5: a: b will not be embedded: cwasi.embed names the image"), "{text}");
    assert!(of_c.contains("7:5: c: imports that cannot be satisfied: "), "{text}");
    // Without containerd the rest is still checked.
    let output =
        cwasi().args(["--address", "/does/not/exist.sock", "lint", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("images and embedded modules are not checked")
            && stdout(&output).contains("6:5: a")
    );
}

#[test]
fn images_that_nothing_uses_are_pruned() {
    let stage = Stage::new("cli-images");
    let (greeter, texts, hello) =
        (stage.guest("greeter"), stage.guest("texts"), stage.guest("hello-caller"));
    let file = stage.workflow(
        "w",
        &format!(
            "    greeter: {{module: {greeter}, role: secondary, embed: {{texts: texts}}}}\n    \
             texts: {{module: {texts}, role: library}}\n    hello: {{module: {hello}, args: [Ada]}}\n"
        ),
    );
    stage.ok(&["deploy", &file]);
    stage.ok(&["run", &file]);
    let used_by = |function: &str| -> Option<Value> {
        let images: Value = serde_json::from_str(&stage.ok(&["image", "ls", "--json"])).unwrap();
        let mut images = images.as_array().unwrap().iter();
        let name = format!("cwasi.local/w/{function}:");
        let image = images.find(|it| it["name"].as_str().unwrap().starts_with(&name))?;
        assert!(image["bytes"].as_u64().unwrap() > 0, "{image}");
        Some(image["containers"].clone())
    };
    let greeter = || Some(serde_json::json!(["w.greeter"]));
    assert_eq!((used_by("greeter"), used_by("texts")), (greeter(), greeter()));
    assert_eq!(used_by("hello"), Some(serde_json::json!([])));
    assert!(stage.ok(&["image", "ls"]).contains("w.greeter"));
    let removed = stage.ok(&["image", "prune"]);
    assert!(
        removed.starts_with("cwasi.local/w/hello:") && removed.lines().count() == 1,
        "{removed}"
    );
    assert_eq!(
        (used_by("greeter"), used_by("texts"), used_by("hello")),
        (greeter(), greeter(), None)
    );
    // What was removed is made again.
    stage.ok(&["run", &file]);
    stage.ok(&["rm", "--workflow", "w"]);
    assert_eq!(stage.ok(&["image", "prune"]).lines().count(), 3);
    assert_eq!(stage.ok(&["image", "prune"]), "");
}

#[test]
fn modules_are_compiled_ahead() {
    let stage = Stage::new("cli-compile");
    let module = stage.folder.path().join("m.wasm");
    // Another module in each run.
    let text =
        format!("(module (func (export \"_start\") (drop (i32.const {}))))", std::process::id());
    fs::write(&module, wat::parse_str(text).unwrap()).unwrap();
    let config = stage.folder.path().join("node.toml");
    fs::write(&config, format!("cache_dir = \"{}\"\n", stage.folder.path().display())).unwrap();
    let compile = || {
        let mut command = stage.cwasi();
        let output =
            command.env("CWASI_CONFIG", &config).arg("compile").arg(&module).output().unwrap();
        (stdout(&output), stderr(&output))
    };
    let (first, said) = compile();
    assert!(first.ends_with("m.wasm compiled\n"), "{first} {said}");
    assert!(compile().0.ends_with("m.wasm cached\n"));
    for engine in Engine::ALL {
        let mut command = stage.cwasi();
        command.env("CWASI_CONFIG", &config).args(["--json", "compile", "--engine"]);
        let output = command.arg(engine.name()).arg(&module).output().unwrap();
        let printed: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let expected = if engine == DEFAULT_ENGINE { "cached" } else { "compiled" };
        assert_eq!((&printed["engine"], &printed["state"]), (&json!(engine), &json!(expected)));
        assert!(
            printed["file"].as_str().unwrap().ends_with(engine.native_extension()),
            "{printed}"
        );
    }
    fs::write(&module, "text").unwrap();
    assert!(compile().1.contains("is not a WebAssembly module"));
}
