//! Plays the shim: starts a zygote, sends verbs, reaps; and makes small OCI bundles.
#![expect(unsafe_code, reason = "passes the control socket under a fixed number, takes pipes")]

use cwasi_testbed::engines;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, CreateSpec, SandboxKind, Verb, VerbReply, VerbRequest, Workload,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Longest wait for anything in these tests.
pub const WAIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// How the cgroups of these tests begin; the test's process and a number follow.
const CGROUPS: &str = "cwasi-test-";

static NEXT: AtomicU32 = AtomicU32::new(0);
static CLEARED: Once = Once::new();

/// Ends and removes what tests have left whose process was killed.
fn clear_away() {
    for hierarchy in directories(Path::new("/sys/fs/cgroup")) {
        for tree in directories(&hierarchy) {
            let name = tree.file_name().unwrap().to_string_lossy().into_owned();
            let pid = name.strip_prefix(CGROUPS).and_then(|rest| rest.split('-').next());
            // Others' have a word there.
            let pid = pid.filter(|it| it.parse::<u32>().is_ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&tree);
            }
        }
    }
}

/// Removes a cgroup with those below it, and kills what is in them. Another test's process may do the same.
fn remove(cgroup: &Path) {
    directories(cgroup).iter().for_each(|below| remove(below));
    let _no_freezer = std::fs::write(cgroup.join("freezer.state"), "THAWED");
    eventually("a cgroup to go", || {
        let inside = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            let _gone = nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
        let _busy = std::fs::remove_dir(cgroup);
        (!cgroup.exists()).then_some(())
    });
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

/// Polls until `probe` gives something.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: nothing within {WAIT:?}");
        std::thread::sleep(POLL);
    }
}

/// One group's zygote, libcontainer root and bundles.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub zygote: Child,
    pub control: OwnedFd,
    pub cgroup: String,
}

impl Fixture {
    pub fn new() -> Self {
        CLEARED.call_once(clear_away);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("/{CGROUPS}{}-{number}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        let (zygote, control) = start_zygote();
        Self { dir, zygote, control, cgroup }
    }

    /// Kills the zygote, as an accident would, and starts another.
    pub fn replace_zygote(&mut self) {
        self.zygote.kill().unwrap();
        self.zygote.wait().unwrap();
        (self.zygote, self.control) = start_zygote();
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("oci")
    }

    /// Sends a verb and waits for the reply.
    pub fn send(&self, id: &str, verb: Verb, descriptors: &[BorrowedFd<'_>]) -> VerbReply {
        self.try_send(id, verb, descriptors).expect("the builder answers")
    }

    fn try_send(&self, id: &str, verb: Verb, descriptors: &[BorrowedFd<'_>]) -> Option<VerbReply> {
        let (reply, theirs) = seqpacket::pair().unwrap();
        let request = VerbRequest { container: id.into(), root: self.root(), verb };
        let mut all = vec![theirs.as_fd()];
        all.extend_from_slice(descriptors);
        seqpacket::send(self.control.as_fd(), &[&control::encode(&request)], &all, None).ok()?;
        drop(theirs);
        let deadline = Deadline::after(WAIT);
        let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
        let received = seqpacket::receive(reply.as_fd(), &mut buffer, Some(deadline)).ok()?;
        Some(control::decode(&buffer[..received.len]).unwrap())
    }

    /// A bundle whose rootfs shows the host's `/usr` read-only; `change` edits the spec.
    pub fn bundle(&self, id: &str, args: &[&str], change: impl FnOnce(&mut Value)) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        let rootfs = bundle.join("rootfs");
        for directory in ["usr", "proc", "dev", "sys", "tmp", "run"] {
            std::fs::create_dir_all(rootfs.join(directory)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), rootfs.join(name)).unwrap();
        }
        let mut spec = spec(args, &format!("{}/{id}", self.cgroup));
        change(&mut spec);
        std::fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        bundle
    }

    /// Creates a native container.
    pub fn native(&self, id: &str, args: &[&str]) -> Container<'_> {
        self.native_with(id, args, |_| {}).unwrap()
    }

    /// Creates a native container from a changed spec.
    pub fn native_with(
        &self,
        id: &str,
        args: &[&str],
        change: impl FnOnce(&mut Value),
    ) -> Result<Container<'_>, String> {
        let bundle = self.bundle(id, args, change);
        self.create(id, bundle, Workload::Native, &[])
    }

    /// Creates a container with pipes as its output.
    pub fn create(
        &self,
        id: &str,
        bundle: PathBuf,
        workload: Workload,
        more: &[BorrowedFd<'_>],
    ) -> Result<Container<'_>, String> {
        let spec = create_spec(format!("{id}-in-containerd"), bundle, workload);
        self.create_from(id, spec, more)
    }

    /// The same of what the shim has read before.
    pub fn create_from(
        &self,
        id: &str,
        spec: CreateSpec,
        more: &[BorrowedFd<'_>],
    ) -> Result<Container<'_>, String> {
        let stdin = File::open("/dev/null").unwrap();
        let (stdout, their_stdout) = nix::unistd::pipe().unwrap();
        let (stderr, their_stderr) = nix::unistd::pipe().unwrap();
        let mut descriptors = vec![stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
        descriptors.extend_from_slice(more);
        let verb = Verb::Create(Box::new(spec));
        match self.send(id, verb, &descriptors) {
            VerbReply::Created { pid } => Ok(Container {
                fixture: self,
                id: id.to_owned(),
                pid: Pid::from_raw(pid),
                stdout: stdout.into(),
                stderr: stderr.into(),
                reaped: Cell::new(false),
            }),
            VerbReply::Failed { message } => Err(message),
            VerbReply::Done => panic!("create answered with done"),
        }
    }

    /// Creates a native container with a terminal; returns its init and the terminal's master.
    pub fn create_with_terminal(&self, id: &str, bundle: PathBuf) -> (Pid, OwnedFd) {
        let (reply, theirs) = seqpacket::pair().unwrap();
        let spec = create_spec(id.to_owned(), bundle, Workload::Native);
        let verb = Verb::Create(Box::new(spec));
        let request = VerbRequest { container: id.into(), root: self.root(), verb };
        let null = File::open("/dev/null").unwrap();
        let descriptors = [theirs.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()];
        seqpacket::send(self.control.as_fd(), &[&control::encode(&request)], &descriptors, None)
            .unwrap();
        drop(theirs);
        let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
        let received =
            seqpacket::receive(reply.as_fd(), &mut buffer, Some(Deadline::after(WAIT))).unwrap();
        let reply = control::decode(&buffer[..received.len]).unwrap();
        let VerbReply::Created { pid } = reply else { panic!("{reply:?}") };
        (Pid::from_raw(pid), received.descriptors.into_iter().next().unwrap())
    }

    /// A container that another zygote's builder made.
    pub fn adopt(&self, id: &str, pid: Pid) -> Container<'_> {
        let nothing = || File::open("/dev/null").unwrap();
        let reaped = Cell::new(false);
        Container {
            fixture: self,
            id: id.to_owned(),
            pid,
            stdout: nothing(),
            stderr: nothing(),
            reaped,
        }
    }

    /// Directories of a container in every cgroup v1 hierarchy.
    pub fn cgroups(&self, id: &str) -> Vec<PathBuf> {
        let relative = format!("{}/{id}", self.cgroup.trim_start_matches('/'));
        std::fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .map(|entry| entry.unwrap().path().join(&relative))
            .filter(|path| path.exists())
            .collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _killed = self.zygote.kill();
        let _reaped = self.zygote.wait();
        // Only the parents that libcontainer makes on the way and leaves, as runc does.
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap() {
            let parent = hierarchy.unwrap().path().join(self.cgroup.trim_start_matches('/'));
            let _absent = std::fs::remove_dir(parent);
        }
    }
}

fn start_zygote() -> (Child, OwnedFd) {
    let (control, theirs) = seqpacket::pair().unwrap();
    let mut command = Command::new(engines::program(engines::tested().sandbox_program()));
    command.arg("zygote");
    let number = theirs.as_raw_fd();
    // SAFETY:
    // - between fork and exec only signal, dup2 and fcntl run, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // A shell that runs tests in the background has them ignored, and so would every container.
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            let copied =
                if number == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(number, 3) };
            if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let zygote = command.spawn().unwrap();
    (zygote, control)
}

pub struct Container<'a> {
    pub fixture: &'a Fixture,
    pub id: String,
    pub pid: Pid,
    pub stdout: File,
    pub stderr: File,
    reaped: Cell<bool>,
}

/// A failed test leaves nothing running either.
impl Drop for Container<'_> {
    fn drop(&mut self) {
        if !self.reaped.get() {
            let _gone = nix::sys::signal::kill(self.pid, nix::sys::signal::Signal::SIGKILL);
            // A frozen one dies when delete thaws it.
            let _replied = self.fixture.try_send(&self.id, Verb::Delete, &[]);
            self.reap();
        }
        let _replied = self.fixture.try_send(&self.id, Verb::Delete, &[]);
    }
}

impl Container<'_> {
    /// Reaps a killed init, for a bounded time: one that has not joined its pid namespace yet may never end.
    fn reap(&self) {
        let end = Instant::now() + WAIT;
        while waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            if Instant::now() > end {
                return eprintln!("{}: killed, and {} is still there", self.id, self.pid);
            }
            std::thread::sleep(POLL);
        }
    }

    pub fn verb(&self, verb: Verb) -> Result<(), String> {
        match self.fixture.send(&self.id, verb, &[]) {
            VerbReply::Done => Ok(()),
            VerbReply::Failed { message } => Err(message),
            VerbReply::Created { .. } => panic!("not a create"),
        }
    }

    pub fn start(&self) {
        self.verb(Verb::Start).unwrap();
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(self.pid, signal).unwrap();
    }

    /// Reaps init: exit code, or 128 + signal.
    pub fn wait(&self) -> i32 {
        let code = eventually("exit of init", || {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).unwrap() {
                WaitStatus::Exited(_, code) => Some(code),
                WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
                _ => None,
            }
        });
        self.reaped.set(true);
        code
    }

    /// All of stdout; returns when the container closed it.
    pub fn output(&mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        text
    }

    pub fn errors(&mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        text
    }

    pub fn status(&self, key: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    }

    /// What each descriptor of a process points to.
    pub fn descriptors(&self) -> Vec<(i32, PathBuf)> {
        descriptors_of(self.pid)
    }

    pub fn delete(&self) {
        self.verb(Verb::Delete).unwrap();
    }
}

/// What each descriptor of a process points to, by number.
pub fn descriptors_of(pid: Pid) -> Vec<(i32, PathBuf)> {
    descriptors_of_living(pid).unwrap()
}

/// The same; `None` for a process that has ended.
pub fn descriptors_of_living(pid: Pid) -> Option<Vec<(i32, PathBuf)>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(&path).ok()?))
        })
        .collect();
    found.sort();
    Some(found)
}

/// True while a process exists that is no zombie.
pub fn alive(pid: Pid) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

/// A value of one cgroup file.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// What a shim sends of a bundle.
pub fn create_spec(id: String, bundle: PathBuf, workload: Workload) -> CreateSpec {
    CreateSpec {
        id,
        specification: std::fs::read_to_string(bundle.join("config.json")).unwrap(),
        bundle,
        systemd_cgroup: false,
        sandbox: SandboxKind::Container,
        workload,
    }
}

fn spec(args: &[&str], cgroup: &str) -> Value {
    let caps = ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": args,
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": caps, "effective": caps, "permitted": caps },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }],
            "noNewPrivileges": true
        },
        "root": { "path": "rootfs" },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] },
            { "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] },
            { "destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] }
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "cgroupsPath": cgroup,
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "mount" }, { "type": "network" }
            ],
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}
