//! A process with the API of WOW's executor: `cwasi openwhisk`, or WOW's own.

use std::io::{BufRead as _, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::accounts::family;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// What our executor says before its address, on stderr.
const LISTENING: &str = "listening on http://";
/// What WOW's says, on stdout.
const WOW_LISTENING: &str = "Listening on: ";
/// Where WOW's listens always.
const WOW_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 9000);

/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// Longest wait until it accepts connections.
const ACCEPTS_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// An executor until it is dropped.
pub struct Executor {
    process: Child,
    pub address: SocketAddr,
    /// Where ours keeps its cache and its state.
    _folders: Vec<TempDir>,
}

impl Executor {
    /// Starts `cwasi openwhisk` of these programs, with a home of its own, and a state folder in memory as that of a
    /// user's session is.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start_ours(programs: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let state = tempfile::tempdir_in(MEMORY).or_else(|_missing| tempfile::tempdir())?;
        let program = programs.join("cwasi");
        let mut command = ends_with_us(&program, "TERM");
        command.args(["openwhisk", "--listen", "127.0.0.1:0"]).env_clear();
        command.env("HOME", home.path()).env("XDG_RUNTIME_DIR", state.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| program.display().to_string())?;
        let stderr = process.stderr.take().context("stderr is a pipe")?;
        let address = address(stderr, LISTENING);
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        // Dropping it ends the process, also after an error.
        let mut executor = Self { process, address: unknown, _folders: vec![home, state] };
        executor.address = address.with_context(|| program.display().to_string())?;
        Ok(executor)
    }

    /// Starts WOW's own.
    ///
    /// # Errors
    /// When it does not say where it listens, or another program has its port.
    pub fn start_wow(program: &Path) -> Result<Self> {
        let mut command = ends_with_us(program, "KILL");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().with_context(|| program.display().to_string())?;
        let stdout = process.stdout.take().context("stdout is a pipe")?;
        let expected = SocketAddr::from(WOW_ADDRESS);
        let mut executor = Self { process, address: expected, _folders: Vec::new() };
        let address = address(stdout, WOW_LISTENING)?;
        ensure!(address == expected, "{} listens on {address}", program.display());
        executor.accepts()?;
        Ok(executor)
    }

    /// Waits until it accepts connections: WOW's speaks before it listens.
    fn accepts(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            ensure!(started.elapsed() < ACCEPTS_MAX, "{} takes no connections", self.address);
            thread::sleep(POLL);
        }
        let ended = self.process.try_wait()?;
        ensure!(ended.is_none(), "the executor ended: does another program have {}?", self.address);
        Ok(())
    }

    /// It and everything below it.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        i32::try_from(self.process.id()).map(family).unwrap_or_default()
    }
}

/// A command that gets this signal if this program ends without ending it.
fn ends_with_us(program: &Path, signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal]).arg(program);
    command
}

/// The address behind `before` in a line of the output, which is read to its end: it would wait for a reader.
fn address(output: impl Read + Send + 'static, before: &str) -> Result<SocketAddr> {
    let (mut lines, mut said) = (BufReader::new(output), String::new());
    while lines.read_line(&mut said)? > 0 {
        if let Some((_, address)) = said.split_once(before) {
            let address = address.trim().parse().context("the executor's address")?;
            thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return Ok(address);
        }
    }
    anyhow::bail!("the executor does not say where it listens: {said}")
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Ours removes its actions and its folder; WOW's just ends.
        if let Ok(pid) = i32::try_from(self.process.id()) {
            let _ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _reaped = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_behind_other_lines() {
        let found =
            address(&b"cwasi: note\ncwasi: listening on http://127.0.0.1:81\n"[..], LISTENING);
        assert_eq!(found.unwrap(), "127.0.0.1:81".parse().unwrap());
        assert!(address(&b"cwasi: no\n"[..], LISTENING).is_err());
    }
}
