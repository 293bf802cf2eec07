//! `--kube` starts the program with the verbs of a cluster: that beside the command, or else that of `PATH`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::home::Home;
use super::{stderr, stdout};

/// A program that says which one it is, and its arguments.
fn write_program(folder: &Path, name: &str) {
    let program = folder.join("kubectl-cwasi");
    fs::write(&program, format!("#!/bin/sh\necho {name}: \"$@\"\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn verbs_of_a_cluster_are_another_programs() {
    let home = Home::new();
    let run = || {
        let mut command = home.cwasi();
        command.env("PATH", home.path("data")).args(["-n", "shop", "ps", "--kube", "w"]);
        command.output().unwrap()
    };
    let missing = run();
    assert_eq!(missing.status.code(), Some(66));
    let said = stderr(&missing);
    assert!(said.contains("kubectl-cwasi") && said.contains("`make install`"), "{said}");
    for (folder, name) in [("data", "of PATH"), ("bin", "beside")] {
        write_program(&home.path(folder), name);
        let done = run();
        assert!(done.status.success(), "{}", stderr(&done));
        assert_eq!(stdout(&done), format!("{name}: -n shop ps --kube w\n"));
    }
}
