//! Descriptors on their way: the kernel counts them for all processes of a user, and refuses more from one that has no
//! privileges.
#![expect(unsafe_code, reason = "one thread becomes another user")]

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use cwasi_abi::Errno;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{Entry, FunctionLaunch, Role, SandboxMessage};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::json;

use crate::fixture::{Fixture, eventually};
use crate::function::{Function, launch};
use crate::guests::guests;

/// A user without other processes.
const USER: u32 = 54_321;
/// Most descriptors in a message.
const AT_A_TIME: usize = 250;

/// Sends `count` descriptors on behalf of the user, but with root's privileges; they are on their way until both ends,
/// which are returned, are closed.
fn fill(count: usize) -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let sending = std::thread::spawn(move || {
        // SAFETY:
        // - the system call, unlike the library's function, changes this thread only; it ends right after.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, USER, 0, 0) };
        assert_eq!(changed, 0);
        let file = File::open("/dev/null").unwrap();
        let descriptors = [file.as_raw_fd(); AT_A_TIME];
        for _ in 0..count.div_ceil(AT_A_TIME) {
            let rights = [ControlMessage::ScmRights(&descriptors)];
            let flags = MsgFlags::MSG_DONTWAIT;
            sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(b"x")], &rights, flags, None).unwrap();
        }
        ours
    });
    (sending.join().unwrap(), theirs)
}

/// How many descriptors init may have.
fn limit(function: &Function<'_>) -> usize {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", function.container.pid));
    let limits = limits.unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_request_that_cannot_be_handed_to_a_worker_is_refused_and_the_next_is_served() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("many", &["/f.wasm"], |spec| {
        spec["process"]["user"] = json!({ "uid": USER, "gid": USER });
        spec["process"]["capabilities"] = json!({});
    });
    // Init counts its requests, so it hands each of them on, with its caller's connection.
    let counted = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let counted = FunctionLaunch { max_requests: 1000, ..counted };
    let function = Function::create_in(&fixture, "many", bundle, counted).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    let mut caller = function.caller();
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    let on_their_way = fill(limit(&function) + AT_A_TIME);
    for _ in 0..3 {
        let (code, message) = caller.call(b"c").unwrap_err();
        assert_eq!(Errno::from_code(code), Some(Errno::Overloaded), "{message}");
        assert!(message.contains("raise RLIMIT_NOFILE"), "{message}");
    }
    drop(on_their_way);
    // The kernel takes them away a moment later.
    eventually("an answer", || caller.call(b"c").ok());
    function.end();
}
