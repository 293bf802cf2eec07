//! Starts and connects to a guarded containerd. Dropping it ends everything that it started.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::engines;
use crate::node_dir::NodeDir;
use crate::paths::ContainerdVersion;
use crate::ready::Ready;

/// Name of this crate's program, beside the runtime's programs.
const PROGRAM: &str = "cwasi-testbed";
/// Longest wait for a restarted containerd's first answer.
const RESTART_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A private containerd that lives as long as this value and this process.
#[derive(Debug)]
pub struct Containerd {
    guard: Child,
    /// Closed to say: take everything down.
    lifeline: Option<ChildStdin>,
    ready: Ready,
    version: ContainerdVersion,
}

impl Containerd {
    /// Starts one that finds the runtime in the folder `programs`, or in the one of [`engines::PROGRAMS_VARIABLE`].
    ///
    /// # Errors
    /// When set-up or the build is missing, or containerd does not start.
    pub fn start(version: ContainerdVersion, programs: &Path) -> Result<Self> {
        Self::start_guard(version, programs, &[])
    }

    /// Starts one in a network of its own, with a cable to the machine's.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_linked(version: ContainerdVersion, programs: &Path) -> Result<Self> {
        Self::start_guard(version, programs, &["--linked"])
    }

    /// Starts one with the service that a kubelet uses.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_cri(version: ContainerdVersion, programs: &Path) -> Result<Self> {
        Self::start_guard(version, programs, &["--cri"])
    }

    fn start_guard(version: ContainerdVersion, programs: &Path, flags: &[&str]) -> Result<Self> {
        let program = programs.join(PROGRAM);
        if !program.exists() {
            bail!("{} is missing: cargo build -p {PROGRAM} (make test does)", program.display());
        }
        let mut guard = Command::new(&program)
            .args(["guard", "--containerd", version.name(), "--programs"])
            .arg(engines::programs(programs))
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let lifeline = guard.stdin.take();
        let stdout = guard.stdout.take().context("the guard's stdout is a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("read the guard's answer")?;
        let Ok(ready) = serde_json::from_str(&line) else {
            drop(lifeline);
            let status = guard.wait()?;
            bail!("{} did not start ({status}); its message is above", version.name());
        };
        Ok(Self { guard, lifeline, ready, version })
    }

    #[must_use]
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Which one it is.
    #[must_use]
    pub const fn version(&self) -> ContainerdVersion {
        self.version
    }

    /// The guard's process: ancestor of everything in this fixture.
    #[must_use]
    pub fn guard_pid(&self) -> i32 {
        i32::try_from(self.guard.id()).expect("process ids are positive and below 2^22")
    }

    /// `ctr` in a containerd namespace, for the fixture's own node.
    #[must_use]
    pub fn ctr(&self, namespace: &str) -> Command {
        self.ctr_for(namespace, &self.ready.node())
    }

    /// `ctr` in a containerd namespace, for this node.
    #[must_use]
    pub fn ctr_for(&self, namespace: &str, node: &NodeDir) -> Command {
        let mut command = Command::new(self.ready.bin_dir.join("ctr"));
        command
            .arg("--address")
            .arg(self.ready.address())
            .args(["--namespace", namespace])
            .env("TMPDIR", node.temporary())
            .stdin(Stdio::null());
        command
    }

    /// Kills containerd with SIGKILL and returns once its successor answers.
    ///
    /// # Errors
    /// When it cannot be killed, or none comes.
    pub fn restart(&self) -> Result<()> {
        self.absence(|| ())
    }

    /// Kills containerd with SIGKILL, runs `meanwhile` without it, and returns once its successor answers.
    ///
    /// # Errors
    /// As [`Self::restart`].
    pub fn absence(&self, meanwhile: impl FnOnce()) -> Result<()> {
        let before = self.ready.containerd_pid();
        let absence = Absence::begin(self.ready.absence_file())?;
        std::fs::write(self.ready.restart_file(), "").context("announce the restart")?;
        kill(Pid::from_raw(before), Signal::SIGKILL).context("kill containerd")?;
        meanwhile();
        drop(absence);
        let start = Instant::now();
        while self.ready.containerd_pid() == before || !self.answers()? {
            if start.elapsed() > RESTART_MAX {
                bail!("containerd did not come back within {RESTART_MAX:?}");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn answers(&self) -> Result<bool> {
        let mut ctr = self.ctr("default");
        ctr.arg("version").stdout(Stdio::null()).stderr(Stdio::null());
        Ok(ctr.status().context("run ctr version")?.success())
    }

    /// Takes everything down and waits until it is gone.
    ///
    /// # Errors
    /// When the guard could not remove something.
    pub fn stop(mut self) -> Result<()> {
        self.lifeline = None;
        let status = self.guard.wait()?;
        if !status.success() {
            bail!("the guard of {} ended with {status}; its message is above", self.version.name());
        }
        Ok(())
    }
}

/// While it lives, the guard does not replace a killed containerd.
struct Absence(PathBuf);

impl Absence {
    fn begin(file: PathBuf) -> Result<Self> {
        std::fs::write(&file, "").context("announce the absence")?;
        Ok(Self(file))
    }
}

impl Drop for Absence {
    fn drop(&mut self) {
        // Fails only when the guard has removed the folder.
        let _gone = std::fs::remove_file(&self.0);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.lifeline.take().is_some() {
            // The guard prints what it could not remove.
            let _printed = self.guard.wait();
        }
    }
}
