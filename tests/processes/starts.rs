//! Children of the launcher and the daemon: their descriptors, and zygotes that do not come up.
#![expect(unsafe_code, reason = "takes the control socket that a zygote inherits as a number")]

use std::io::Read as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use cwasi_config::Engine;
use cwasi_sandbox::zygote::CONTROL_DESCRIPTOR;
use cwasi_shim::reaper::Reaper;
use cwasi_shim::spawn::{Program, SpawnError, spawn};
use cwasi_shim::zygote::{Zygote, ZygoteError};
use cwasi_sys::pidfd::PidFd;
use cwasi_sys::process::take_inherited;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{VERSION, Verb, VerbRequest};

use crate::harness::Case;

pub const CASES: &[Case] = &[
    ("descriptors_arrive_at_their_numbers", descriptors),
    ("the_end_of_a_process_that_was_killed_is_seen", end_is_seen),
    ("a_zygote_that_does_not_come_up_with_the_stub_gets_llvm", without_the_stub),
    ("a_zygote_that_never_comes_up_is_an_error", never),
    ("a_zygote_of_another_version_is_an_error", other_version),
];

fn descriptors() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pid = spawn(
        Path::new("/bin/sh"),
        &["-c", "echo out >&4; echo err >&3"],
        &[(writer.as_fd(), 4), (writer.as_fd(), 3)],
        &[],
    )
    .unwrap();
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "out\nerr\n");
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
    assert!(matches!(spawn::<&str>(Path::new("/no"), &[], &[], &[]), Err(SpawnError::Os { .. })));
}

fn end_is_seen() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let pid = spawn::<&str>(Path::new("/bin/cat"), &[], &[(reader.as_fd(), 0)], &[]).unwrap();
    let process = PidFd::open(pid).unwrap();
    assert!(!process.wait(Duration::ZERO));
    process.signal(nix::libc::SIGKILL).unwrap();
    assert!(process.wait(Duration::from_secs(10)));
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None).unwrap();
}

/// Names of this program with which it stands in for the sandbox's.
const NEEDS_LLVM: &str = "needs-llvm";
const OTHER_VERSION: &str = "other-version";
const NEVER_UP: &str = "never-up";

/// Stands in for the sandbox's program, with its descriptors and variables, when started under one of these names.
pub fn stand_in(program: &str) {
    let name = Path::new(program).file_name().unwrap_or_default();
    // SAFETY:
    // - the shim passes the socket under this number; nothing here has opened a descriptor.
    let control = || unsafe { take_inherited(CONTROL_DESCRIPTOR) }.unwrap();
    let greet = |version: &str| {
        let control = control();
        seqpacket::send(control.as_fd(), &[version.as_bytes()], &[], None).unwrap();
        // Ends at its first request.
        let _request = seqpacket::receive(control.as_fd(), &mut [0; 4096], None);
        std::process::exit(0);
    };
    if name == NEVER_UP {
        std::process::exit(1);
    } else if name == OTHER_VERSION {
        greet("0.0.7");
    } else if name == NEEDS_LLVM {
        if std::env::var_os("LD_PRELOAD").is_some() {
            std::process::exit(127);
        }
        greet(VERSION);
    }
}

/// How a verb ends with this program, under this name, in place of the sandbox's.
fn run(name: &str) -> ZygoteError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &path).unwrap();
    let program = Program::open(path).unwrap();
    // What is at its path later does not matter.
    drop(dir);
    let zygote = Zygote::of(Engine::Wasmedge, program, &Reaper::default());
    let request = VerbRequest { container: "c".into(), root: "/nowhere".into(), verb: Verb::Start };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(zygote.run(&request, &[])).unwrap_err()
}

fn without_the_stub() {
    let error = run(NEEDS_LLVM);
    assert!(matches!(error, ZygoteError::NoAnswer { .. }), "{error}");
}

fn never() {
    let error = run(NEVER_UP);
    assert!(matches!(error, ZygoteError::Socket(SocketError::Closed)), "{error}");
}

fn other_version() {
    let error = run(OTHER_VERSION).to_string();
    for part in [OTHER_VERSION, "0.0.7", VERSION, "install all binaries of one version"] {
        assert!(error.contains(part), "{error}");
    }
}
