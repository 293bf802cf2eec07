//! Children of the launcher and the daemon: their descriptors, and zygotes that do not come up.

use std::fs::Permissions;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use cwasi::shim::reaper::Reaper;
use cwasi::shim::spawn::{SpawnError, spawn};
use cwasi::shim::zygote::{Zygote, ZygoteError};
use cwasi::sys::pidfd::PidFd;
use cwasi::sys::seqpacket::SocketError;
use cwasi::wire::control::{Verb, VerbRequest};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("descriptors_arrive_at_their_numbers", descriptors),
    ("the_end_of_a_process_that_was_killed_is_seen", end_is_seen),
    ("a_zygote_that_does_not_come_up_with_the_stub_gets_llvm", without_the_stub),
    ("a_zygote_that_never_comes_up_is_an_error", never),
];

fn descriptors() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pid = spawn(
        Path::new("/bin/sh"),
        &["-c", "echo out >&4; echo err >&3"],
        &[(writer.as_fd(), 4), (writer.as_fd(), 3)],
    )
    .unwrap();
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "out\nerr\n");
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
    assert!(matches!(spawn::<&str>(Path::new("/no"), &[], &[]), Err(SpawnError::Os { .. })));
}

fn end_is_seen() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let pid = spawn::<&str>(Path::new("/bin/cat"), &[], &[(reader.as_fd(), 0)]).unwrap();
    let process = PidFd::open(pid).unwrap();
    assert!(!process.wait(Duration::ZERO));
    process.signal(nix::libc::SIGKILL).unwrap();
    assert!(process.wait(Duration::from_secs(10)));
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
}

/// What a verb ends with where a script is in place of the sandbox's program, with its descriptors and variables.
fn run(script: &str) -> ZygoteError {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("zygote");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let zygote = Zygote::of(program, &Reaper::default());
    let request = VerbRequest { container: "c".into(), root: "/nowhere".into(), verb: Verb::Start };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(zygote.run(&request, &[])).unwrap_err()
}

fn without_the_stub() {
    // Greets without the stub only, and ends at its first request.
    let error = run("[ -z \"$LD_PRELOAD\" ] || exit 127; printf '!' >&3; read -r x <&3");
    assert!(matches!(error, ZygoteError::NoAnswer { .. }), "{error}");
}

fn never() {
    let error = run("exit 1");
    assert!(matches!(error, ZygoteError::Socket(SocketError::Closed)), "{error}");
}
