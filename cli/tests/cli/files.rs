//! Files of a function: the same on containerd and with `--local`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;

use super::home::Home;
use super::scene::Stage;
use super::{stderr, stdout};

/// What a function writes here.
const WRITTEN: &str = "data/one/below/new";

/// A folder of the test's with a file, which root and the ordinary user may write.
fn folder(home: &Home, name: &str, file: &str) -> String {
    let path = home.path("data").join(name);
    fs::create_dir_all(path.join("below")).unwrap();
    fs::write(path.join(file), file).unwrap();
    for path in [&path, &path.join("below")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    path.display().to_string()
}

/// The ends of one workflow on containerd and without: exit code and stdout.
fn in_both(stage: &Stage, home: &Home, file: &str) -> [(Option<i32>, String, String); 2] {
    let local = home.run(&[file]).output().unwrap();
    // Neither of them may overwrite what the other wrote as another user.
    let _none_when_nothing_is_written = fs::remove_file(home.path(WRITTEN));
    let containerd = stage.cwasi().args(["run", file]).output().unwrap();
    let end = |output: &Output| (output.status.code(), stdout(output), stderr(output));
    [end(&containerd), end(&local)]
}

#[test]
fn a_function_sees_the_same_files_in_a_container_and_without() {
    let (stage, home) = (Stage::new("cli-files"), Home::new());
    let (data, other) = (folder(&home, "one", "in.txt"), folder(&home, "two", "other.txt"));
    let mounts = |access: &str| format!("mounts: [{{source: {data}, target: /data{access}}}]");
    let nested = format!(
        "mounts: [{{source: {other}, target: /data/inner}}, {{source: {data}, target: /data}}, \
         {{source: {other}, target: /a/b}}, {{source: {data}/in.txt, target: /run/c/d, readOnly: true}}]"
    );
    let in_below = format!("workingDir: //data/below/., {}", mounts(""));
    for (args, more, expected) in [
        ("[ls, /]", nested.as_str(), "a\ndata\ndev\nprobe.wasm\nproc\nrun\n"),
        ("[ls, /a]", &nested, "b\n"),
        ("[ls, /data]", &nested, "below\nin.txt\ninner\n"),
        ("[ls, /data/inner]", &nested, "below\nother.txt\n"),
        ("[read, /run/c/d]", &nested, "in.txt"),
        ("[ls, /proc]", "", ""),
        ("[ls, .]", &in_below, ""),
        ("[ls, /data/below]", &in_below, ""),
        ("[read, in.txt]", &format!("workingDir: /data, {}", mounts(", readOnly: true")), "in.txt"),
        ("[ls, .]", "workingDir: /made/here", ""),
        ("[ls, /made]", "workingDir: /made/here", "here\n"),
    ] {
        let file = home.probe(args, more);
        let [containerd, local] = in_both(&stage, &home, &file);
        assert_eq!(
            (containerd.0, containerd.1.as_str()),
            (Some(0), expected),
            "{args} {more}: {}",
            containerd.2
        );
        assert_eq!((local.0, local.1.as_str()), (Some(0), expected), "{args} {more}: {}", local.2);
    }
    // A user cannot make devices.
    let [containerd, local] = in_both(&stage, &home, &home.probe("[ls, /dev]", ""));
    let devices = "full\nnull\nrandom\nstderr\nstdin\nstdout\nurandom\nzero\n";
    assert_eq!((containerd.1.as_str(), local.1.as_str()), (devices, "stderr\nstdin\nstdout\n"));
    for (code, _, said) in in_both(&stage, &home, &home.probe("[write, new, text]", &in_below)) {
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(fs::read_to_string(home.path(WRITTEN)).unwrap(), "text");
    let env = home.probe("[env]", &in_below);
    let [containerd, local] = in_both(&stage, &home, &env);
    assert_eq!(containerd.1, local.1);
    assert!(local.1.contains("PWD=/data/below\n"), "{}", local.1);
    // A write that is not allowed.
    for (path, more) in [("/new", ""), ("/data/new", mounts(", readOnly: true").as_str())] {
        let file = home.probe(&format!("[write, {path}, x]"), more);
        let [containerd, local] = in_both(&stage, &home, &file);
        assert_eq!((containerd.0, local.0), (Some(1), Some(1)), "{path}");
        assert!(containerd.2.contains("code: 69"), "{}", containerd.2);
        assert!(local.2.contains("code: 69"), "{}", local.2);
    }
    home.nothing_is_left();
}

#[test]
fn unusable_files_are_refused_and_found_by_lint() {
    let (stage, home) = (Stage::new("cli-no-files"), Home::new());
    let data = folder(&home, "one", "in.txt");
    let outer = format!("{{source: {data}, target: /data, readOnly: true}}");
    let no_place = format!("mounts: [{outer}, {{source: {data}, target: /data/new}}]");
    let no_folder = format!("workingDir: /data/in.txt, mounts: [{outer}]");
    for (more, part) in [
        (
            no_place,
            "mount /data/new: the target does not exist in the folder that is mounted read-only around it",
        ),
        (no_folder, "workingDir /data/in.txt is no folder"),
    ] {
        let file = home.probe("[args]", &more);
        for (code, _, said) in in_both(&stage, &home, &file) {
            assert_eq!(code, Some(65), "{said}");
            assert!(said.contains(part), "{said}");
        }
        let found = stage.ok_or(1, &["lint", &file]);
        assert!(found.contains(part), "{found}");
    }
    // Links are seen by the runtime alone.
    symlink("/dev", Path::new(&data).join("link")).unwrap();
    let linked = format!(
        "mounts: [{{source: {data}, target: /data}}, {{source: {data}/below, target: /data/link}}]"
    );
    for (code, _, said) in in_both(&stage, &home, &home.probe("[args]", &linked)) {
        assert_eq!(code, Some(70), "{said}");
        assert!(
            said.contains("/data/link, leads by a symbolic link to where the container's device"),
            "{said}"
        );
    }
    assert_eq!(fs::read_dir(Path::new(&data).join("below")).unwrap().count(), 0);
    // A single file in a mounted folder, without a container.
    let more = format!(
        "mounts: [{{source: {data}, target: /data}}, {{source: {data}/in.txt, target: /data/x, readOnly: true}}]"
    );
    let [containerd, local] = in_both(&stage, &home, &home.probe("[read, /data/x]", &more));
    assert_eq!((containerd.0, containerd.1.as_str()), (Some(0), "in.txt"), "{}", containerd.2);
    assert_eq!(local.0, Some(65), "{}", local.2);
    assert!(local.2.contains("field `mounts` needs containerd"), "{}", local.2);
    home.nothing_is_left();
}
