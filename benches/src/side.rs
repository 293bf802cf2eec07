//! One side of a comparison: a process that takes jobs on stdin and answers on stdout, ours in a container or a
//! native baseline.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cwasi_bench_protocol::{Answer, END, Job, READY};

/// Longest wait for a side's first line; a container's first start compiles its module.
const READY_MAX: Duration = Duration::from_secs(120);
/// Longest block.
const BLOCK_MAX: Duration = Duration::from_secs(180);
/// Longest wait for a process that was asked to end.
const END_MAX: Duration = Duration::from_secs(20);
/// Between two polls of an ending process.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Side {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Side {
    /// Starts it and waits until it takes jobs. `name` is for messages.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}: {command:?}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("stdout is a pipe")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The receiver is gone: the side is being dropped.
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut side = Self { name: name.to_owned(), child, stdin, lines };
        let said = side.line(READY_MAX)?;
        if said != READY {
            bail!("{name} said `{said}` instead of `{READY}`");
        }
        Ok(side)
    }

    /// Its process.
    ///
    /// # Panics
    /// Never: process ids are below 2^22.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids are below 2^22")
    }

    /// Has it do one block of work.
    ///
    /// # Errors
    /// When it says so, ends, or does not answer in time.
    pub fn perform(&mut self, job: &Job) -> Result<Answer> {
        self.begin(job)?;
        self.finish(job)
    }

    /// Gives the job.
    ///
    /// # Errors
    /// When the side has ended.
    pub fn begin(&mut self, job: &Job) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a side takes no jobs after its end")?;
        writeln!(stdin, "{job}").with_context(|| format!("{} has ended", self.name))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Self::perform`].
    pub fn finish(&mut self, job: &Job) -> Result<Answer> {
        let line = self.line(BLOCK_MAX)?;
        line.parse().with_context(|| format!("{}: {job}", self.name))
    }

    /// Tells it to end, and waits until it has.
    ///
    /// # Errors
    /// When it does not, or ends with an error.
    pub fn end(mut self) -> Result<()> {
        if let Some(mut stdin) = self.stdin.take() {
            // One that ended before shows below how it did.
            let _ended = writeln!(stdin, "{END}");
        }
        let polls = END_MAX.as_millis() / POLL.as_millis();
        for _ in 0..polls {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("{} ended with {status}", self.name);
                }
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("{} does not end", self.name)
    }

    fn line(&mut self, limit: Duration) -> Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line.trim_end().to_owned()),
            Err(RecvTimeoutError::Timeout) => bail!("{} says nothing for {limit:?}", self.name),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended with {status}; its message is above", self.name)
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // After `end` it is reaped already; otherwise something failed and it must go.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_bench_protocol::{Made, Verb};

    fn shell(script: &str) -> Result<Side> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Side::start("shell", command)
    }

    fn job() -> Job {
        Job {
            verb: Verb::Call,
            targets: Vec::new(),
            size: 1,
            made: Made::Vector,
            touch: false,
            count: 1,
            branches: 1,
        }
    }

    #[test]
    fn orders_are_answered_and_errors_are_errors() {
        let mut side =
            shell("echo ready; read a; echo '1 0 ; 5 ; 7'; read b; echo error no").unwrap();
        assert_eq!(side.perform(&job()).unwrap().call, [7]);
        let error = format!("{:#}", side.perform(&job()).unwrap_err());
        assert!(error.contains("shell: call - 1 vector none 1 1: no"), "{error}");
        side.end().unwrap();
    }

    #[test]
    fn a_side_that_ends_or_babbles_is_an_error() {
        assert!(shell("echo hello").unwrap_err().to_string().contains("hello"));
        let mut side = shell("echo ready; read a; exit 3").unwrap();
        let error = format!("{:#}", side.perform(&job()).unwrap_err());
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(shell("echo ready; read a; exit 4").unwrap().end().is_err());
    }
}
