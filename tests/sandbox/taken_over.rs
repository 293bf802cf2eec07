//! A compromised worker: a process with its user and capabilities tries to access the function's other processes. Its
//! access to init's page of the worker table: `cargo test --test processes`.
#![expect(unsafe_code, reason = "system calls that reach into another process")]

use std::fs::{self, File};
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use caps::{CapSet, CapsHashSet};
use cwasi_sandbox::worker_table::{Phase, SlotState};
use cwasi_wire::control::{Entry, FunctionLaunch, Role};
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use serde_json::json;

use crate::fixture::{Fixture, eventually};
use crate::function::{Function, launch};
use crate::guests::guests;

/// Set in the process that tries: the process that it attacks.
const ATTACKED: &str = "CWASI_ATTACKED_PID";
/// How many ways there are.
const WAYS: usize = 7;

/// The ways by which this process can get at the memory or the descriptors of another.
fn ways_into(pid: i32) -> Vec<&'static str> {
    let file = |name: &str| format!("/proc/{pid}/{name}");
    let mut byte = 0_u8;
    let ours = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let theirs = libc::iovec { iov_base: null_mut(), iov_len: 1 };
    let zero: libc::c_long = 0;
    // SAFETY:
    // - `ours` is one byte of this function's, and nothing of this process is at `theirs`.
    let write_memory =
        || unsafe { libc::process_vm_writev(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
    // SAFETY:
    // - the calls take numbers; a descriptor that is made is closed by this process's end.
    let take_descriptor = || unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), zero);
        libc::syscall(libc::SYS_pidfd_getfd, process, zero, zero)
    };
    // SAFETY:
    // - takes numbers only.
    let trace = || unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, null::<u8>(), null::<u8>()) };
    let tries: [(&str, bool); WAYS] = [
        ("read mem", File::open(file("mem")).is_ok()),
        ("write mem", File::options().write(true).open(file("mem")).is_ok()),
        ("maps", fs::read_to_string(file("maps")).is_ok_and(|maps| !maps.is_empty())),
        ("descriptors", fs::read_link(file("fd/0")).is_ok()),
        // A process that may write there learns that nothing is there.
        ("write memory", write_memory() < 0 && Errno::last() == Errno::EFAULT),
        ("take a descriptor", take_descriptor() >= 0),
        ("trace", trace() == 0),
    ];
    tries.into_iter().filter(|(_, opened)| *opened).map(|(way, _)| way).collect()
}

/// In the process that tries: becomes what a worker is, and finds no way into `pid`.
fn attack(pid: i32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let kept = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
    let kept: CapsHashSet =
        caps::all().into_iter().filter(|cap| kept & cap.bitmask() != 0).collect();
    for cap in caps::all().difference(&kept) {
        caps::drop(None, CapSet::Bounding, *cap).unwrap();
    }
    let uid = field("Uid:").parse().unwrap();
    setgroups(&[]).unwrap();
    setgid(Gid::from_raw(uid)).unwrap();
    setuid(Uid::from_raw(uid)).unwrap();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &kept).unwrap();
    }
    // What is no function is open to every process with its user and its capabilities: these ways are some.
    let mut open = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let sleeps = || fs::read_to_string(format!("/proc/{}/stat", open.id())).ok();
    eventually("a process that sleeps", || {
        sleeps().filter(|stat| stat.contains("(sleep) S")).map(drop)
    });
    let ways = ways_into(i32::try_from(open.id()).unwrap());
    open.kill().unwrap();
    open.wait().unwrap();
    assert_eq!(ways.len(), WAYS, "{ways:?}");
    assert_eq!(ways_into(pid), Vec::<&str>::new());
}

#[test]
fn no_process_of_a_function_is_open_to_another() {
    if let Ok(pid) = std::env::var(ATTACKED) {
        return attack(pid.parse().unwrap());
    }
    let fixture = Fixture::new();
    for uid in [0, 1000] {
        let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
        let id = format!("u{uid}");
        let bundle = fixture.bundle(&id, &["/f.wasm"], |spec| {
            spec["process"]["user"] = json!({ "uid": uid, "gid": uid });
        });
        let launch = FunctionLaunch { concurrency: 2, ..reactor };
        let function = Function::create_in(&fixture, &id, bundle, launch).unwrap();
        function.container.start();
        function.message();
        for pid in [vec![function.container.pid.as_raw()], function.workers()].concat() {
            let tried = Command::new("/proc/self/exe")
                .args(["--exact", "taken_over::no_process_of_a_function_is_open_to_another"])
                .env(ATTACKED, pid.to_string())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&tried.stdout);
            assert!(tried.status.success(), "process {pid} of user {uid}: {said}");
        }
        function.end();
    }
}

/// A worker writes what it can: it has the lead and never reads, and seems to run one request after the other.
#[test]
fn a_lying_worker_delays_no_call_of_others() {
    let fixture = Fixture::new();
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::start(&fixture, "liar", FunctionLaunch { concurrency: 4, ..reactor });
    let mut callers: Vec<_> = (0..3).map(|_| function.caller()).collect();
    let mut liar = function.caller();
    assert_eq!(liar.call(b"c"), Ok(b"1".to_vec()));
    liar.send(b"l", 60_000);
    function.until_busy(1);
    let busy = |state: &SlotState| state.phase() == Phase::Running;
    let index = function.table().iter().position(busy).unwrap();
    let pages = function.pages();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turns = 1 << 20..;
            while !over.load(Relaxed) {
                pages.set_leader(index);
                pages.pretend_to_run(index, turns.next().unwrap());
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let answered = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..20 {
                for caller in &mut callers {
                    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
                }
            }
        }));
        over.store(true, Relaxed);
        answered.unwrap();
    });
    function.end();
}
