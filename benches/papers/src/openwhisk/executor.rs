//! A process with the API of WOW's executor: `cwasi openwhisk`.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result};
use cwasi_bench::accounts::family;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// What our executor says before its address, on stderr.
const LISTENING: &str = "listening on http://";

/// An executor until it is dropped.
pub struct Executor {
    process: Child,
    pub address: SocketAddr,
    /// Where ours keeps its state.
    _home: TempDir,
}

impl Executor {
    /// Starts `cwasi openwhisk` of these programs, with a home of its own.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start_ours(programs: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let program = programs.join("cwasi");
        let mut command = Command::new(&program);
        command.args(["openwhisk", "--listen", "127.0.0.1:0"]).env_clear();
        command.env("HOME", home.path()).env("XDG_RUNTIME_DIR", home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| program.display().to_string())?;
        let stderr = process.stderr.take().context("stderr is a pipe")?;
        let address = address(stderr, LISTENING);
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        // Dropping it ends the process, also after an error.
        let mut executor = Self { process, address: unknown, _home: home };
        executor.address = address.with_context(|| program.display().to_string())?;
        Ok(executor)
    }

    /// It and everything below it.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        i32::try_from(self.process.id()).map(family).unwrap_or_default()
    }
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
        // Ours removes its actions and its folder.
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
