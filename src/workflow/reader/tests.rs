use super::*;
use crate::{Additions, Mount};

const GOOD: &str = r#"
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata:
  name: street
spec:
  nodes:
    cloud:
      address: /run/cloud.sock
  functions:
    frames:
      module: frames.wasm
      args: [/in/video.mp4, --fast]
      env: {LEVEL: "2"}
      mounts:
        - {name: video, target: /in, readOnly: true}
        - {source: out, target: /out}
    detect:
      image: localhost/detect:1
      role: secondary
      node: cloud
      replicas: 2
      concurrency: 4
      timeout: 30s
      memory: 64MiB
      allow: [frames, other/*]
      fanIn: {parts: caller, timeout: 5s}
      embed: {fn_utils: utils}
    utils:
      role: library
      module: utils.wasm
"#;

fn parse(text: &str) -> Result<Workflow, Vec<Problem>> {
    let inputs = vec![("video".to_owned(), PathBuf::from("/videos"))];
    Workflow::parse(text, Path::new("/w"), &Additions { inputs, ..Additions::default() })
}

#[test]
fn a_file_becomes_functions_with_annotations() {
    let workflow = parse(GOOD).unwrap();
    assert_eq!(workflow.name, "street");
    assert_eq!(workflow.nodes["cloud"].address, Path::new("/run/cloud.sock"));
    let [frames, detect, utils] = workflow.functions.as_slice() else { panic!("{workflow:?}") };
    assert_eq!(frames.source, Source::Module("/w/frames.wasm".into()));
    assert_eq!(frames.args, ["/in/video.mp4", "--fast"]);
    let mount = |source: &str, target: &str, read_only| Mount {
        source: source.into(),
        target: target.into(),
        read_only,
    };
    assert_eq!(frames.mounts, [mount("/videos", "/in", true), mount("/w/out", "/out", false)]);
    assert_eq!((detect.role, detect.replicas, utils.role), (Role::Secondary, 2, Role::Library));
    let annotations = detect.all_annotations("street", |name| format!("localhost/{name}:x"));
    let expected = [
        ("cwasi.allow", "frames,other/*"),
        ("cwasi.concurrency", "4"),
        ("cwasi.embed", "fn_utils=localhost/utils:x"),
        ("cwasi.fan-in", "caller"),
        ("cwasi.fan-in.timeout", "5s"),
        ("cwasi.function", "detect"),
        ("cwasi.memory", "64MiB"),
        ("cwasi.role", "secondary"),
        ("cwasi.timeout", "30s"),
        ("cwasi.workflow", "street"),
    ];
    let found: Vec<_> = annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn all_faults_are_reported_with_place_and_nearest_name() {
    let text = r#"
apiVersion: cwasi.dev/v1
kind: Workflow
metadata: {name: "a b"}
spec:
  function: {}
  functions:
    one:
      modul: x.wasm
      concurency: 4
    two:
      image: i:1
      module: x.wasm
      concurrency: 0
      queue: 3
      fanIn: {timeout: soon}
    three:
      image: i:1
      role: secundary
      embed: {m: on}
      node: nowhere
      mounts:
        - {name: in, target: in}
    four:
      image: i:1
      queue: 3
      args: a b
    five:
      image: ""
      env: {"A=B": x}
      mounts: [{source: s, target: /a/../b}, {source: s, target: /c}, {source: t, target: /c}]
"#;
    let problems = parse(text).unwrap_err();
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {}", problem.location, problem.text)).collect();
    let text = lines.join("\n");
    for part in [
        "2:13: apiVersion must be cwasi.dev/v1alpha1",
        "4:18: metadata.name: `a b` is not a name",
        "6:3: spec has the unknown field `function`; did you mean `functions`?",
        "8:5: spec.functions.one has neither `module` nor `image`",
        "9:7: spec.functions.one has the unknown field `modul`; did you mean `module`?",
        "10:7: spec.functions.one has the unknown field `concurency`; did you mean `concurrency`?",
        "12:7: spec.functions.two has both `module` and `image`: keep one",
        "14:20: spec.functions.two.concurrency: 0 is not a whole number from 1 to 256",
        "16:14: spec.functions.two.fanIn has no `parts`",
        "16:24: spec.functions.two.fanIn.timeout: soon is not a duration",
        "19:13: spec.functions.three.role: `secundary` must be primary, secondary or library",
        "20:14: spec.functions.three.embed.m: there is no function `on` in this file; did you mean `one`?",
        "21:13: spec.functions.three.node: spec.nodes has no `nowhere`",
        "23:30: spec.functions.three.mounts[].target: in must be an absolute path",
        "--input in=PATH",
        "26:14: spec.functions.four.queue: cwasi.queue needs cwasi.role=secondary",
        "27:13: spec.functions.four.args must be a list such as [Ada, Grace], not a text",
        "29:14: spec.functions.five.image is empty",
        "30:13: spec.functions.five.env: `A=B` is not the name of a variable",
        "31:36: spec.functions.five.mounts[].target: /a/../b must be an absolute path without `..`",
        "spec.functions.five.mounts[].target: /c is there twice",
        "command line: --input video: no mount has this `name`",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(problems.is_sorted());
}

#[test]
fn the_command_line_changes_values() {
    let set = |path: &str, value: &str| {
        let additions = Additions {
            set: vec![(path.to_owned(), value.to_owned())],
            inputs: vec![("video".to_owned(), PathBuf::from("/videos"))],
            ..Additions::default()
        };
        Workflow::parse(GOOD, Path::new("/w"), &additions)
    };
    let changed = set("spec.functions.detect.replicas", "3").unwrap();
    assert_eq!(changed.function("detect").unwrap().replicas, 3);
    let changed = set("spec.functions.frames.args", "[a, b]").unwrap();
    assert_eq!(changed.function("frames").unwrap().args, ["a", "b"]);
    let problems = set("spec.functions.detect.replica", "3").unwrap_err();
    assert_eq!(problems[0].location, Location::CommandLine);
    assert!(problems[0].text.contains("did you mean `replicas`?"), "{problems:?}");
}

/// A file with one secondary that has these fields.
fn secondary(fields: &str) -> Result<Workflow, Vec<Problem>> {
    let head = "apiVersion: cwasi.dev/v1alpha1\nkind: Workflow\nmetadata: {name: w}\nspec:\n  functions:\n";
    parse(&format!(
        "{head}    f:\n      image: i:1\n      role: secondary\n{fields}      mounts:\n        - {{name: video, target: /in}}\n"
    ))
}

#[test]
fn triggers_become_one_annotation() {
    let text =
        "      triggers:\n        - redis: {stream: orders}\n        - redis: {channel: alarms}\n";
    let workflow = secondary(text).unwrap();
    let annotation = &workflow.functions[0].annotations["cwasi.triggers"];
    assert_eq!(annotation, "redis-stream:orders,redis-channel:alarms");
    let none = secondary("      triggers: []\n").unwrap();
    assert!(!none.functions[0].annotations.contains_key("cwasi.triggers"));
}

#[test]
fn wrong_triggers_are_faults_where_they_are() {
    for (text, location, part) in [
        ("      triggers: orders\n", "9:17", "triggers must be a list, not a text"),
        ("      triggers: [{http: a}]\n", "9:19", "has the unknown field `http`"),
        ("      triggers: [{redis: {}}]\n", "9:18", "one of `stream` and `channel`"),
        ("      triggers: [{redis: {stream: a, channel: b}}]\n", "9:18", "one of `stream` and"),
        ("      triggers: [{redis: {strem: a}}]\n", "9:27", "did you mean `stream`?"),
        ("      triggers: [{redis: {stream: \"a,b\"}}]\n", "9:35", "a comma"),
        ("      triggers: [{redis: {stream: \"cwasi:x\"}}]\n", "9:35", "the runtime's own"),
        (
            "      triggers: [{redis: {stream: a}}, {redis: {stream: a}}]\n",
            "9:17",
            "`redis-stream:a` twice",
        ),
        (
            "      scale: {min: 0, max: 2}\n      triggers: [{redis: {channel: a}}]\n",
            "10:36",
            "needs scale.min: 1 or more",
        ),
        (
            "      fanIn: {parts: 2}\n      triggers: [{redis: {stream: a}}]\n",
            "10:17",
            "contradicts cwasi.fan-in",
        ),
    ] {
        let problems = secondary(text).unwrap_err();
        let found = problems
            .iter()
            .any(|problem| problem.location.to_string() == location && problem.text.contains(part));
        assert!(found, "{location} {part}: {problems:#?}");
    }
    assert!(
        secondary("      scale: {min: 0, max: 2}\n      triggers: [{redis: {stream: a}}]\n")
            .is_ok()
    );
}

#[test]
fn an_action_of_openwhisk_has_a_port() {
    let workflow = secondary("      http: 8080\n      protocol: openwhisk\n").unwrap();
    let annotations = &workflow.functions[0].annotations;
    assert_eq!(annotations["cwasi.protocol"], "openwhisk");
    for (text, part) in [
        ("      protocol: openwhisk\n", "needs a port, such as cwasi.http=8080"),
        ("      http: gateway\n      protocol: openwhisk\n", "needs a port"),
        ("      http: 8080\n      protocol: grpc\n", "protocol"),
    ] {
        let problems = secondary(text).unwrap_err();
        assert!(problems.iter().any(|problem| problem.text.contains(part)), "{problems:#?}");
    }
}
