//! Files that a function cannot have: refused alike on containerd and with `--local`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;

use super::home::Home;
use super::scene::Stage;
use super::{stderr, stdout};

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
    let containerd = stage.cwasi().args(["run", file]).output().unwrap();
    let end = |output: &Output| (output.status.code(), stdout(output), stderr(output));
    [end(&containerd), end(&local)]
}

#[test]
fn devices_are_those_that_the_page_names() {
    let (stage, home) = (Stage::new("cli-devices"), Home::new());
    // A user cannot make devices.
    let [containerd, local] = in_both(&stage, &home, &home.probe("[ls, /dev]", ""));
    let devices = "full\nnull\nrandom\nstderr\nstdin\nstdout\nurandom\nzero\n";
    assert_eq!((containerd.1.as_str(), local.1.as_str()), (devices, "stderr\nstdin\nstdout\n"));
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
