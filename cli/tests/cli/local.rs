//! `cwasi run --local`: an ordinary user, without containerd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use cwasi_testbed::scene::wait_for;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::home::{Home, signal};
use super::scene::Stage;
use super::{stderr, stdout};

/// Runs a workflow on containerd; its stdout.
fn on_containerd(stage: &Stage, file: &str) -> String {
    stage.ok(&["run", file])
}

#[test]
fn an_ordinary_user_gets_the_bytes_of_containerd() {
    let (stage, home) = (Stage::new("cli-local"), Home::new());
    let hello = home.hello();
    let first = home.ok(&[&hello]);
    assert_eq!(stdout(&first), on_containerd(&stage, &hello));
    let text = stderr(&first);
    assert!(text.contains("without containers; their isolation is weaker"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("hello ") && line.contains(" 2 ")), "{text}");
    // The second run finds what the first one compiled.
    let compiled = home.compiled();
    assert_eq!(compiled.len(), 2, "{compiled:?}");
    assert_eq!(stdout(&home.ok(&[&hello])), stdout(&first));
    assert_eq!(home.compiled(), compiled);
    for arguments in ["[args, a, 'b c']", "[env]", "[context, function]", "[context, workflow]"] {
        let file = home.probe(arguments, "env: {KEY: value}");
        assert_eq!(stdout(&home.ok(&[&file])), on_containerd(&stage, &file), "{arguments}");
    }
    let (linker, texts) = (home.guest("linker"), home.guest("texts"));
    let file = home.workflow(
        "linked",
        &format!(
            "    linker: {{module: {linker}, args: [backwards, abc], embed: {{texts: texts, letters: letters}}}}\n    \
             texts: {{module: {texts}, role: library}}\n    letters: {{module: {}, role: library}}\n",
            home.guest("letters")
        ),
    );
    assert_eq!(stdout(&home.ok(&[&file])), on_containerd(&stage, &file));
}

#[test]
fn a_run_has_a_trace_that_outlives_it() {
    let home = Home::new();
    let hello = home.hello();
    home.ok(&[&hello]);
    let run: Value = serde_json::from_str(&stdout(&home.ok(&["--json", &hello]))).unwrap();
    let last = home.cwasi().args(["trace", "last", "--json"]).output().unwrap();
    let last: Value = serde_json::from_str(&stdout(&last)).unwrap();
    assert_eq!(last["id"], run["run"], "{last}");
    // The run, the primary, and two calls with two sides.
    let kinds = last["spans"].as_array().unwrap().iter().map(|it| it["span"]["kind"].clone());
    let calls = ["client", "server", "client", "server"];
    assert_eq!(kinds.collect::<Vec<_>>(), [&["run", "run"][..], &calls].concat(), "{last}");
    let kept = home.path(".local/state/cwasi/traces");
    for file in fs::read_dir(kept).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o077, 0);
    }
}

#[test]
fn functions_open_their_mounts_and_nothing_else() {
    let home = Home::new();
    let data = home.path("data");
    fs::write(data.join("in.txt"), "input").unwrap();
    let source = data.display();
    let read_only = format!("mounts: [{{source: {source}, target: /in, readOnly: true}}]");
    let writable = format!("mounts: [{{source: {source}, target: /out}}]");
    let one = format!("mounts: [{{source: {source}/in.txt, target: /a/one.txt, readOnly: true}}]");
    let read = home.probe("[read, /in/in.txt]", &read_only);
    assert_eq!(stdout(&home.ok(&[&read])), "input");
    assert_eq!(stdout(&home.ok(&[&home.probe("[read, /a/one.txt]", &one)])), "input");
    home.ok(&[&home.probe("[write, /out/new.txt, text]", &writable)]);
    assert_eq!(fs::read_to_string(data.join("new.txt")).unwrap(), "text");
    assert_eq!(stdout(&home.ok(&[&home.probe("[write, /dev/stdout, text]", "")])), "text");
    for (arguments, more) in [
        ("[write, /in/other.txt, text]", read_only.as_str()),
        ("[write, /other.txt, text]", &read_only),
        ("[read, /etc/passwd]", &read_only),
        ("[read, /in/../../etc/passwd]", &read_only),
    ] {
        let output = home.run(&[&home.probe(arguments, more)]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
    }
    assert!(!data.join("other.txt").exists());
    home.nothing_is_left();
}

#[test]
fn what_needs_containerd_is_refused_with_its_field() {
    let home = Home::new();
    let probe = home.guest("probe");
    let nodes = "  nodes: {n: {address: /n.sock}}\n";
    let file = home.data("[args]");
    for (functions, field) in [
        ("    f: {image: 'localhost/f:1'}\n".to_owned(), "image"),
        (format!("    f: {{module: {probe}, node: n}}\n{nodes}"), "node"),
        (format!("    f: {{module: {probe}, embed: {{a: 'localhost/a:1'}}}}\n"), "embed"),
    ] {
        let text = stderr(&home.ends(65, &[&home.workflow("w", &functions)]));
        assert!(text.contains(&format!("function f: field `{field}` needs containerd")), "{text}");
    }
    let file_mount = format!("mounts: [{{source: {file}, target: /in.txt}}]");
    let text = stderr(&home.ends(70, &[&home.probe("[args]", &file_mount)]));
    assert!(text.contains("a single file can only be mounted with readOnly"), "{text}");
    let text =
        stderr(&home.ends(66, &[&home.probe("[args]", "mounts: [{source: /no, target: /a}]")]));
    assert!(text.contains("function probe: /no does not exist"), "{text}");
    home.ends(2, &["--keep", &home.hello()]);
}

#[test]
fn a_limit_names_the_users_configuration() {
    let home = Home::new();
    let folder = home.path(".config/cwasi");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), "[compile]\nlocals = 1\n").unwrap();
    let text = stderr(&home.ends(70, &[&home.hello()]));
    let file = folder.join("config.toml").display().to_string();
    assert!(text.contains("raise `locals` under [compile]") && text.contains(&file), "{text}");
}

#[test]
fn no_end_of_the_command_leaves_a_process() {
    let home = Home::new();
    let file = home.endless_file();
    // While it compiles.
    let child = home.run(&[&file]).spawn().unwrap();
    wait_for("the compiler", || home.processes().iter().any(|it| it == "cwasi-shim").then_some(()));
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    home.nothing_is_left();
    // Compiled before, so that waiting for the endless one has a bound.
    home.ok(&[&file, "--set", "spec.functions.probe.args=[args]"]);
    // While it runs.
    let child = home.endless(&file);
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted, taking down"), "{}", stderr(&output));
    home.nothing_is_left();
    // No chance to take down: the kernel ends the processes, and the next run removes the folder.
    let child = home.endless(&file);
    signal(&child, Signal::SIGKILL);
    child.wait_with_output().unwrap();
    wait_for("the end of all processes", || home.processes().is_empty().then_some(()));
    assert_eq!(home.state().len(), 1);
    home.ok(&[&home.hello()]);
}

#[test]
fn native_code_of_another_users_cache_is_not_loaded() {
    let (stage, home) = (Stage::new("cli-local-cache"), Home::new());
    let hello = home.hello();
    home.ok(&[&hello]);
    let theirs = home.path(".cache");
    assert!(!home.compiled().is_empty());
    let run = |cache: &std::path::Path| {
        let run = ["run", "--local", &hello];
        stage.cwasi().args(run).env("XDG_CACHE_HOME", cache).output().unwrap()
    };
    // This test runs as root.
    let refused = run(&theirs);
    assert_eq!(refused.status.code(), Some(77), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("belongs to user 65534, not to root; set XDG_CACHE_HOME"),
        "{}",
        stderr(&refused)
    );
    let own = tempfile::tempdir().unwrap();
    let below = own.path().join("new");
    assert!(run(&below).status.success());
    // A folder that root made there is still the other's to replace.
    let made = theirs.join("roots");
    fs::create_dir(&made).unwrap();
    assert_eq!(run(&made).status.code(), Some(77));
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let open = run(&below);
    assert_eq!(open.status.code(), Some(77));
    assert!(stderr(&open).contains("everybody may write"), "{}", stderr(&open));
}

#[test]
fn root_uses_no_folder_of_another_user() {
    let (stage, home) = (Stage::new("cli-local-folders"), Home::new());
    let hello = home.hello();
    let theirs = home.path("data");
    // A folder that root made there is still theirs to replace.
    fs::create_dir(theirs.join("made")).unwrap();
    fs::write(theirs.join("cwasi.toml"), "").unwrap();
    let run = |variable: &str, path: &std::path::Path| {
        let mut command = stage.cwasi();
        command.args(["run", "--local", &hello]).env_remove("CWASI_CONFIG");
        command.env(variable, path).output().unwrap()
    };
    for variable in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "CWASI_CONFIG"] {
        let paths = match variable {
            "CWASI_CONFIG" => [theirs.join("cwasi.toml"), theirs.join("none")],
            _ => [theirs.clone(), theirs.join("made")],
        };
        for path in paths {
            let refused = run(variable, &path);
            let text = stderr(&refused);
            assert_eq!(refused.status.code(), Some(77), "{variable}: {text}");
            for part in ["belongs to user 65534, not to root", &format!("unset {variable}")] {
                assert!(text.contains(part), "{variable}: {text}");
            }
        }
    }
    let text = stderr(&run("HOME", &theirs));
    assert!(text.contains("set HOME to the home of this user"), "{text}");
    let own = tempfile::tempdir().unwrap();
    // A link of the other user in root's own folder.
    let link = own.path().join("cwasi");
    std::os::unix::fs::symlink(&theirs, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
    assert_eq!(run("XDG_STATE_HOME", own.path()).status.code(), Some(77));
    fs::remove_file(&link).unwrap();
    let run = run("XDG_STATE_HOME", own.path());
    assert!(run.status.success(), "{}", stderr(&run));
}

#[test]
fn a_mount_whose_source_has_a_link_is_refused() {
    let home = Home::new();
    let (data, link) = (home.path("data"), home.path("data").join("link"));
    std::os::unix::fs::symlink("..", &link).unwrap();
    let mounts = format!("mounts: [{{source: {}, target: /in}}]", link.display());
    let refused = home.ends(65, &[&home.probe("[args]", &mounts)]);
    let text = stderr(&refused);
    assert!(text.contains("link is a symbolic link to .., and"), "{text}");
    let mounts = format!("mounts: [{{source: {}, target: /in}}]", data.display());
    home.ok(&[&home.probe("[args]", &mounts)]);
}
