//! Guards one private containerd: starts it, reports its address, and ends everything when the guard's own stdin
//! closes. Runs as a process of its own (`cwasi-testbed guard`), in its own session.
//!
//! stdin closes when the starter exits, also after Ctrl-C and `kill -9`. The guard is the subreaper of containerd and
//! its shims.
//!
//! Invariant: it kills its own descendants only.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, setsid};

use crate::link::Link;
use crate::node_dir::NodeDir;
use crate::paths::{self, ContainerdVersion};
use crate::ready::Ready;
use crate::{containerd_config, leaks, processes};

/// Longest wait for containerd's first answer.
const READY_MAX: Duration = Duration::from_secs(60);
/// Longest wait for killed processes to be gone.
const GONE_MAX: Duration = Duration::from_secs(20);
/// Between two polls of children and stdin.
const POLL_MS: u16 = 50;

/// What a guarded containerd has besides the runtime.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Extras {
    /// A network of its own, with a cable to the machine's.
    #[arg(long)]
    pub linked: bool,
    /// The service that a kubelet uses, with the handler [`containerd_config::CRI_HANDLER`] and without a pod network.
    #[arg(long)]
    pub cri: bool,
}

/// Runs the guard until stdin ends or a signal asks it to stop.
///
/// # Errors
/// When containerd does not start, or ends on its own, or something cannot be removed afterwards.
pub fn serve(version: ContainerdVersion, programs: &Path, extras: Extras) -> Result<()> {
    // Already a session leader when started by a shell with job control.
    let _already_leader = setsid();
    nix::sys::prctl::set_child_subreaper(true).context("become a subreaper")?;
    outlive_terminal_signals()?;
    let link = extras.linked.then(Link::enter).transpose()?;
    let ready = start(version, programs, link, extras.cri)?;
    let outcome = wait_ready(&ready).and_then(|()| {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&ready)?)?;
        watch(&ready, programs)
    });
    let removed = take_down(&ready);
    outcome.and(removed)
}

/// Keeps Ctrl-C and a closed terminal from ending this process before it has taken everything down. What it
/// starts is not affected: a handler, unlike an ignored signal, is not inherited over `exec`.
///
/// # Errors
/// When the system refuses a handler.
pub fn outlive_terminal_signals() -> Result<()> {
    extern "C" fn nothing(_: nix::libc::c_int) {}
    for number in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM] {
        #[expect(unsafe_code, reason = "sigaction is unsafe because handlers may do anything")]
        // SAFETY:
        // - `nothing` does nothing, which is async-signal-safe.
        unsafe { signal(number, SigHandler::Handler(nothing)) }
            .with_context(|| format!("handle {number}"))?;
    }
    Ok(())
}

fn start(
    version: ContainerdVersion,
    programs: &Path,
    link: Option<Link>,
    cri: bool,
) -> Result<Ready> {
    let bin_dir = version.bin_dir()?;
    let dir = paths::short_dir()?;
    NodeDir::create(dir.clone())?;
    fs::write(dir.join("containerd.toml"), containerd_config::text(version, &dir, cri))?;
    let ready = Ready { dir, bin_dir, link };
    spawn_containerd(&ready, programs)?;
    Ok(ready)
}

/// Starts containerd and notes its pid.
fn spawn_containerd(ready: &Ready, programs: &Path) -> Result<()> {
    let (dir, bin_dir) = (&ready.dir, &ready.bin_dir);
    let mut path = vec![programs.to_owned(), bin_dir.clone(), paths::runc_dir()?];
    // An engine that tests find nowhere else ([`engines::PROGRAMS_VARIABLE`]).
    path.extend(std::env::current_exe()?.parent().map(Path::to_owned));
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let log = fs::File::options().create(true).append(true).open(ready.log())?;
    // Not waited for through `Child`: `reap` waits for every child of this process.
    let child = Command::new(bin_dir.join("containerd"))
        .arg("--config")
        .arg(dir.join("containerd.toml"))
        .env("PATH", std::env::join_paths(path)?)
        .env("CWASI_CONFIG", ready.node().config())
        .env("TMPDIR", ready.node().temporary())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {}/containerd", bin_dir.display()))?;
    // Replaced as a whole: a test that waits for another pid never reads half of one.
    let written = dir.join("containerd.pid.new");
    fs::write(&written, child.id().to_string())?;
    fs::rename(written, ready.pid_file()).context("note containerd's pid")
}

fn wait_ready(ready: &Ready) -> Result<()> {
    let start = Instant::now();
    loop {
        let answers = Command::new(ready.bin_dir.join("ctr"))
            .arg("--address")
            .arg(ready.address())
            .arg("version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("run ctr version")?
            .success();
        if answers {
            return Ok(());
        }
        let ended = processes::read(ready.containerd_pid()).is_none_or(|one| one.state == 'Z');
        if ended || start.elapsed() > READY_MAX {
            bail!("containerd did not start:\n{}", log_tail(&ready.log()));
        }
        std::thread::sleep(Duration::from_millis(POLL_MS.into()));
    }
}

/// Last lines of a log, for a failure's message.
#[must_use]
pub fn log_tail(path: &Path) -> String {
    /// Lines that usually hold the cause.
    const LINES: usize = 40;
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("loading plugin")).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Reaps orphans until stdin ends; starts containerd anew when a test has killed it.
fn watch(ready: &Ready, programs: &Path) -> Result<()> {
    let stdin = std::io::stdin();
    let mut absent = false;
    loop {
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(POLL_MS)) {
            Ok(0) | Err(Errno::EINTR) => {}
            // Nothing is ever written to us: readable means the end.
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("poll stdin"),
        }
        if reap().contains(&ready.containerd_pid()) {
            if fs::remove_file(ready.restart_file()).is_err() {
                bail!("containerd ended on its own:\n{}", log_tail(&ready.log()));
            }
            absent = true;
        }
        if absent && !ready.absence_file().exists() {
            spawn_containerd(ready, programs)?;
            absent = false;
        }
    }
}

/// Children that ended since the last call.
fn reap() -> Vec<i32> {
    let mut ended = Vec::new();
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
        match status {
            WaitStatus::StillAlive => break,
            status => ended.extend(status.pid().map(Pid::as_raw)),
        }
    }
    ended
}

fn take_down(ready: &Ready) -> Result<()> {
    let start = Instant::now();
    loop {
        reap();
        let below = processes::descendants(getpid().as_raw());
        if below.is_empty() {
            break;
        }
        if start.elapsed() > GONE_MAX {
            bail!("processes cannot be killed: {below:?}");
        }
        for process in below {
            // Gone in between is as good.
            let _gone = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(POLL_MS.into()));
    }
    for mount in leaks::mounts_below(&ready.dir).iter().rev() {
        nix::mount::umount2(mount.as_path(), nix::mount::MntFlags::MNT_DETACH)
            .with_context(|| format!("unmount {}", mount.display()))?;
    }
    for namespace in ready.namespaces() {
        leaks::remove_cgroups(&namespace);
    }
    fs::remove_dir_all(&ready.dir).with_context(|| format!("remove {}", ready.dir.display()))
}
