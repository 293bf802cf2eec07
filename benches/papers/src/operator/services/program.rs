//! A server of a Debian package that set-up has unpacked below `.cwasi`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cwasi_testbed::paths::state_dir;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest wait until it accepts connections.
const READY_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A program below the package's folder.
///
/// # Errors
/// When set-up has not unpacked it.
pub fn unpacked(folder: &str, program: &str) -> Result<PathBuf> {
    let path = state_dir().join(folder).join(program);
    ensure!(path.exists(), "{} is missing: scripts/papers.sh unpacks it", path.display());
    Ok(path)
}

/// The command of a program with the package's libraries, in a user namespace in which it is not root: PostgreSQL
/// refuses to be.
///
/// # Errors
/// As [`unpacked`].
pub fn command(folder: &str, program: &str) -> Result<Command> {
    let mut paths = Vec::new();
    for libraries in ["usr/lib", "lib"].map(|name| state_dir().join(folder).join(name)) {
        let is_multiarch = |path: &PathBuf| path.to_string_lossy().ends_with("-linux-gnu");
        let below = std::fs::read_dir(&libraries).into_iter().flatten().flatten();
        paths.extend(below.map(|entry| entry.path()).filter(is_multiarch));
        paths.push(libraries);
    }
    let mut command = Command::new("unshare");
    // The signal is set last: a new user namespace clears it.
    command.args(["--user", "--map-user=65534", "setpriv", "--pdeathsig", "KILL"]);
    command.arg(unpacked(folder, program)?).env("LD_LIBRARY_PATH", std::env::join_paths(paths)?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// A server until it is dropped.
pub struct Server(Child);

impl Server {
    /// Starts it and waits until it accepts connections at a port.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(mut command: Command, port: u16) -> Result<Self> {
        let mut server = Self(command.spawn().with_context(|| format!("start {command:?}"))?);
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.0.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            ensure!(started.elapsed() < READY_MAX, "{command:?} does not listen");
            std::thread::sleep(POLL);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx and PostgreSQL end fast with it.
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ended = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let _reaped = self.0.wait();
    }
}
