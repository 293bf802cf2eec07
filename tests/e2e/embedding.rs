//! End to end on a real containerd: functions that run in their caller's VM. Images with the module as a layer
//! (`letters`) and in a root file system (`texts`, `server`); every test ends with the check that nothing is left.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::path::{Path, PathBuf};

use cwasi_testbed::edges::Edge;
use cwasi_testbed::image::{MODULE_MEDIA_TYPES, Start, write_module_image};
use cwasi_testbed::run::{Outcome, Run};
use cwasi_testbed::scene::{Scene, guests_dir};

use crate::{SHIM, scene};

const TEXTS: &str = "localhost/texts:test";
const LETTERS: &str = "localhost/letters:test";
const SERVER: &str = "localhost/server:test";
/// The annotation that CRI gives the containers of a pod.
const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";

fn guest(name: &str) -> PathBuf {
    guests_dir(Path::new(SHIM).parent().unwrap()).join(format!("{name}.wasm"))
}

/// Imports the two libraries and the reactor as images of their own.
fn import_libraries(scene: &Scene) {
    for name in ["texts", "server"] {
        let _reference = scene.import_module(name, &std::fs::read(guest(name)).unwrap());
    }
    let archive = scene.node.path().join("letters.tar");
    let start = Start { entrypoint: vec!["/letters.wasm".into()], ..Start::default() };
    write_module_image(&guest("letters"), MODULE_MEDIA_TYPES[0], LETTERS, &start, &archive)
        .unwrap();
    let archive = archive.to_str().unwrap();
    let _imported =
        scene.ctr(["images", "import", "--all-platforms", "--no-unpack", archive]).success();
}

/// `linker` in workflow `w`, with both libraries named; its function is called `id`.
fn linker(scene: &Scene, id: &str, args: &[&str]) -> Run {
    let embed = format!("texts={TEXTS},letters={LETTERS}");
    named_linker(scene, id, args).annotation("cwasi.embed", &embed)
}

fn named_linker(scene: &Scene, id: &str, args: &[&str]) -> Run {
    let run = scene.guest(id, "linker").args(args.iter().copied());
    run.annotation("cwasi.workflow", "w").annotation("cwasi.function", id)
}

/// The probe in workflow `w`, called `id`.
fn probe(scene: &Scene, id: &str, args: &[&str]) -> Run {
    let run = scene.guest(id, "probe").args(args.iter().copied());
    run.annotation("cwasi.workflow", "w").annotation("cwasi.function", id)
}

/// The probe with `server` embedded as `inside`.
fn embedding(scene: &Scene, id: &str, args: &[&str]) -> Run {
    probe(scene, id, args).annotation("cwasi.embed", &format!("inside={SERVER}"))
}

/// A `server` as a secondary of its own.
fn server(scene: &Scene, id: &str, annotations: &[(&str, &str)]) {
    let run = scene.image(SERVER, id).args(["/m.wasm"]).annotation("cwasi.function", id);
    let mut run = run.annotation("cwasi.role", "secondary");
    for (key, value) in annotations {
        run = run.annotation(key, value);
    }
    scene.start(run);
}

/// Digest that containerd has for an image.
fn digest(scene: &Scene, image: &str) -> String {
    let list = scene.ctr(["images", "ls", &format!("name=={image}")]).success().text();
    let fields = list.lines().last().unwrap().split_whitespace();
    fields.into_iter().find(|field| field.starts_with("sha256:")).unwrap().to_owned()
}

/// Mode and number of calls of an edge, once it is recorded.
fn edge(scene: &Scene, caller: &str, callee: &str) -> (String, u64) {
    let edge = Edge::of(scene, caller, callee);
    (edge.mode, edge.calls)
}

fn refused(outcome: &Outcome, parts: &[&str]) {
    assert_ne!(outcome.code, 0, "stdout: {}", outcome.text());
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part} missing in: {}", outcome.stderr);
    }
}

#[test]
fn libraries_of_libraries_are_linked_and_keep_memory() {
    let scene = scene("embed-depth");
    import_libraries(&scene);
    let said = |id: &str, args: &[&str]| scene.run(linker(&scene, id, args)).success().text();
    assert_eq!(said("depth", &["repeat", "2000"]), "2000 calls\n");
    assert_eq!(edge(&scene, "depth", "texts"), ("embedded".to_owned(), 2001));
    assert_eq!(edge(&scene, "depth:texts", "letters"), ("embedded".to_owned(), 4000));
    assert_eq!(said("one", &["backwards", "straße"]), "ESSARTS\n");
    assert_eq!(said("join", &["join", "a", "3", "b"]), "a---b\n");
    assert_eq!(said("joint", &["join", "a", "0", "b"]), "failed: no dashes, no joint\n");
    assert_eq!(said("large", &["large", "20000000"]), "20000007 bytes came back\n");
}

#[test]
fn the_sdks_example_of_a_library_runs() {
    let scene = scene("embed-sdk");
    import_libraries(&scene);
    let run = scene
        .guest("shout", "shout")
        .args(["banana"])
        .annotation("cwasi.trust", "family")
        .annotation("cwasi.embed", &format!("letters={LETTERS}"));
    assert_eq!(scene.run(run).success().text(), "BANANA! (3× a)\n");
}

#[test]
fn a_call_reaches_a_function_in_the_callers_vm() {
    let scene = scene("embed-call");
    import_libraries(&scene);
    let said = |id: &str, args: &[&str]| scene.run(embedding(&scene, id, args)).success().text();
    assert_eq!(said("calls", &["call", "inside", "hello"]), "hello");
    assert_eq!(edge(&scene, "calls", "inside"), ("embedded".to_owned(), 1));
    for size in ["0", "1", "65536", "10000003"] {
        let id = format!("size-{size}");
        let outcome = said(&id, &["call-size", "inside", size]);
        assert_eq!(outcome, format!("{size} bytes came back\n"));
    }
    assert_eq!(said("many", &["repeat", "inside", "1000", "x"]), "ok 1000\n");
    assert_eq!(edge(&scene, "many", "inside"), ("embedded".to_owned(), 1000));
    let all =
        ["calls", "inside", "!fail no plate", "!context function", "!context caller", "again"];
    let said = said("ends", &all);
    assert!(said.starts_with("failed: no plate\nok: "), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[1].contains("inside") && lines[2].contains("ends"), "{said}");
    assert_eq!(lines[3], "ok: again");
}

#[test]
fn a_function_of_another_workflow_is_called_next_door() {
    let scene = scene("embed-fallback");
    import_libraries(&scene);
    server(&scene, "next", &[("cwasi.workflow", "other")]);
    let wants =
        |id: &str| probe(&scene, id, &["call", "next", "x"]).annotation("cwasi.embed", "next");
    assert_eq!(scene.run(wants("falls-back")).success().text(), "x");
    assert_eq!(edge(&scene, "falls-back", "next").0, "local");
    let forced = scene.run(wants("forced").annotation("cwasi.mode", "embedded"));
    refused(
        &forced,
        &["may not be embedded", "container next", "workflow `other`", "workflow `w`"],
    );
    let group = |run: Run| run.annotation("cwasi.trust", "family");
    let trusting = scene.run(group(wants("strange")));
    assert_eq!(trusting.success().text(), "x");
    assert_eq!(edge(&scene, "strange", "next").0, "local", "the other is of no trust group");
    server(&scene, "own", &[("cwasi.workflow", "w")]);
    let run = probe(&scene, "trusts", &["call", "own", "x"]).annotation("cwasi.embed", "own");
    assert_eq!(scene.run(run).success().text(), "x");
    assert_eq!(edge(&scene, "trusts", "own").0, "embedded", "it is of the same workflow");
    let local = probe(&scene, "hinted", &["call", "own", "x"]).annotation("cwasi.embed", "own");
    assert_eq!(scene.run(local.annotation("cwasi.mode", "local")).success().text(), "x");
    assert_eq!(edge(&scene, "hinted", "own").0, "local", "the caller wants it so");
}

#[test]
fn an_ungranted_import_names_its_candidate() {
    let scene = scene("embed-untrusted");
    import_libraries(&scene);
    let outcome = scene.run(named_linker(&scene, "trusting", &["backwards", "x"]));
    let help = format!("cwasi.embed=texts={TEXTS}@{}", digest(&scene, TEXTS));
    refused(&outcome, &[r#"(import "texts" "backwards""#, "alone is no reason to trust", &help]);
    let half = named_linker(&scene, "half", &["backwards", "x"])
        .annotation("cwasi.embed", &format!("texts={TEXTS}"));
    let outcome = scene.run(half);
    refused(&outcome, &[r#"(import "letters" "capitals""#, "imported through texts", LETTERS]);
    let alone = scene.guest("alone", "linker").annotation("cwasi.embed", &format!("texts={TEXTS}"));
    refused(&scene.run(alone), &["cwasi.embed needs cwasi.workflow or cwasi.trust"]);
}

#[test]
fn a_pinned_digest_is_checked() {
    let scene = scene("embed-pinned");
    import_libraries(&scene);
    let good = digest(&scene, SERVER);
    let bad = format!("sha256:{}", "0".repeat(64));
    let pinned = |id: &str, digest: &str| {
        let run = probe(&scene, id, &["call", "inside", "x"]);
        scene.run(run.annotation("cwasi.embed", &format!("inside={SERVER}@{digest}")))
    };
    assert_eq!(pinned("good", &good).success().text(), "x");
    refused(&pinned("bad", &bad), &["may not be embedded", &bad, &good]);
    let linked = named_linker(&scene, "linked", &["backwards", "x"])
        .annotation("cwasi.embed", &format!("texts={TEXTS}@{bad},letters={LETTERS}"));
    refused(&scene.run(linked), &["pins", &bad, &digest(&scene, TEXTS)]);
}

#[test]
fn pods_of_other_namespaces_are_not_trusted() {
    let scene = scene("embed-pods");
    import_libraries(&scene);
    server(&scene, "svc", &[("cwasi.workflow", "w"), (POD_NAMESPACE, "theirs")]);
    let in_pod = |id: &str, embed: &str, pod: &str| {
        let run = probe(&scene, id, &["call", "svc", "x"]).annotation("cwasi.embed", embed);
        scene.run(run.annotation(POD_NAMESPACE, pod))
    };
    let parts = ["pod namespace `theirs`", "pod namespace `ours`"];
    refused(&in_pod("named", "svc", "ours"), &parts);
    let image = format!("svc={SERVER}");
    refused(&in_pod("image", &image, "ours"), &["in a pod the name", "pin it with"]);
    let pinned = format!("{image}@{}", digest(&scene, SERVER));
    assert_eq!(in_pod("pinned", &pinned, "ours").success().text(), "x");
    assert_eq!(edge(&scene, "pinned", "svc").0, "embedded");
    assert_eq!(in_pod("same", &image, "theirs").success().text(), "x");
    assert_eq!(edge(&scene, "same", "svc").0, "embedded", "deployed in the same pod namespace");
}

#[test]
fn limits_hold_inside_too() {
    let scene = scene("embed-limits");
    import_libraries(&scene);
    let looping = linker(&scene, "loops", &["loop"]).annotation("cwasi.timeout", "1s");
    let outcome = scene.run(looping);
    assert_eq!(outcome.code, 137);
    refused(&outcome, &["loops did not end within 1000 ms"]);
    let hungry = linker(&scene, "hungry", &["hog", "64"]).annotation("cwasi.memory", "8MiB");
    let text = scene.run(hungry).success().text();
    let got: u32 = text.split_whitespace().next().unwrap().parse().unwrap();
    assert!((1..8).contains(&got), "{text}");
    let limited = embedding(&scene, "limited", &["call-size", "inside", "2000"]);
    let outcome = scene.run(limited.annotation("cwasi.max-payload", "1000"));
    refused(&outcome, &["2000 bytes is larger than the limit of 1000 bytes"]);
    let limited = embedding(&scene, "answers", &["call", "inside", "!size 2000"]);
    let outcome = scene.run(limited.annotation("cwasi.max-payload", "1000"));
    refused(&outcome, &["response of inside of 2000 bytes"]);
    assert_eq!(edge(&scene, "answers", "inside").0, "embedded");
}

#[test]
fn an_instance_that_is_kept_keeps_what_is_embedded_in_it() {
    let scene = scene("embed-kept");
    import_libraries(&scene);
    let embed = format!("inside={SERVER}");
    let kept = ("cwasi.isolation", "instance");
    for (id, isolation) in [("kept", kept), ("fresh", ("cwasi.isolation", "request"))] {
        server(&scene, id, &[("cwasi.workflow", "w"), ("cwasi.embed", &embed), isolation]);
    }
    let counts = |id: &str, target: &str| {
        let inside = "!call inside !served";
        let calls = ["calls", target, "!served", inside, inside, "!trap", inside, "!served"];
        scene.run(probe(&scene, id, &calls)).success().text()
    };
    let (kept, fresh) = (counts("asks-kept", "kept"), counts("asks-fresh", "fresh"));
    let (kept, fresh): (Vec<_>, Vec<_>) = (kept.lines().collect(), fresh.lines().collect());
    assert_eq!(fresh[0], fresh[5], "a fresh instance each time");
    assert_eq!((fresh[1], fresh[1]), (fresh[2], fresh[4]), "inside too");
    assert_ne!(kept[1], kept[2], "it counts on");
    assert!(kept[3].starts_with("trapped"), "{kept:?}");
    assert_eq!(kept[4], kept[1], "after a trap everything starts anew");
    assert_ne!(kept[5], kept[0], "its own state is kept as well");
    let command = scene.guest("command", "filter").annotation("cwasi.role", "secondary");
    let outcome = scene.run(command.annotation("cwasi.isolation", "instance"));
    refused(&outcome, &["cwasi.isolation=instance needs a reactor"]);
}
