//! Runs a primary to its end: its output is the command's, and on a terminal each function has a line meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cwasi_host::metrics::snapshot::EdgeSnapshot;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::time::interval;

use super::display::{Display, Line};
use super::hops;
use super::platform::{Known, Platform};
use super::{Deployment, container_id};
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use cwasi_workflow::{Function, Role};

/// Between two readings of the calls.
const POLL: Duration = Duration::from_millis(500);
/// Bytes that are copied at once.
const CHUNK: usize = 64 * 1024;

/// The two outputs of a function.
struct Outputs {
    stdout: Receiver,
    stderr: Receiver,
    to_stderr: bool,
}

impl<'a, P: Platform> Deployment<'a, P> {
    /// Runs one primary; its exit code.
    pub(super) async fn run_primary(
        &self,
        function: &'a Function,
        to_stderr: bool,
    ) -> Result<u32, Failure> {
        let node = self.node(function);
        let id = container_id(&self.workflow.name, &function.name, 1);
        let plan = self.plan(function, &id).await?;
        match node.known(&self.workflow.name, &id, &plan).await? {
            Known::Idle => node.remove(&id).await?,
            Known::Runs { .. } => {
                let text = format!("{id} runs already: cwasi rm {id}, or wait for its end");
                return Err(Failure::text(Exit::Failed, text));
            }
        }
        let fifos = self.fifos_folder(node)?;
        let (stdout, stderr) = (fifos.join("out"), fifos.join("err"));
        let mut outputs = Outputs { stdout: fifo(&stdout)?, stderr: fifo(&stderr)?, to_stderr };
        let uri = |path: &Path| path.display().to_string();
        let stdin = self.input.take(&fifos);
        let stdin =
            stdin.with_context(|| format!("a fifo in {} cannot be made", fifos.display()))?;
        let stdin = stdin.as_deref().map(uri).unwrap_or_default();
        let stdio = Stdio { stdin, stdout: uri(&stdout), stderr: uri(&stderr) };
        self.note(function, &id);
        let line = self.display.line(&id);
        let module = self.images[function.name.as_str()].module.as_ref().map(Vec::len);
        let created = tokio::select! {
            created = self.create(node, &id, &plan, &stdio) => created,
            never = line.compiling(Instant::now(), module) => match never {},
            failure = outputs.copy(&self.display) => Err(failure),
        };
        line.clear();
        if let Err(error) = created {
            // The first error is the one to report.
            let _unwritten = outputs.drain(&self.display);
            return Err(error);
        }
        node.start(&id).await?;
        self.phases.primary_runs();
        let exit = tokio::select! {
            exit = node.wait(&id) => exit?,
            failure = outputs.copy(&self.display) => return Err(failure),
            never = self.display_calls() => match never {},
        };
        // The function has ended, so everything that it wrote is in the fifos.
        outputs.drain(&self.display)?;
        Ok(exit)
    }

    /// The calls of the workflow on all nodes.
    #[must_use]
    pub fn hops(&self) -> Vec<EdgeSnapshot> {
        let read = |node: &P| hops::read(node.state_dir(), node.namespace(), &self.workflow.name);
        self.nodes.values().flat_map(read).collect()
    }

    /// The requests that wait for a function on all nodes.
    fn queued(&self, function: &str) -> u64 {
        let read =
            |node: &P| hops::functions(node.state_dir(), node.namespace(), &self.workflow.name);
        let all = self.nodes.values().flat_map(read).filter(|it| it.key.function == function);
        all.map(|it| it.gauges.queued).sum()
    }

    /// Shows a line for each function until it is dropped.
    async fn display_calls(&self) -> std::convert::Infallible {
        if !self.display.is_live() {
            return std::future::pending().await;
        }
        let functions = self.workflow.functions.iter().filter(|it| it.role != Role::Library);
        let lines: Vec<_> = functions
            .map(|function| (function, FunctionLine(self.display.line(&function.name))))
            .collect();
        let mut polls = interval(POLL);
        let mut before = (Instant::now(), self.hops());
        loop {
            polls.tick().await;
            let now = (Instant::now(), self.hops());
            let seconds = (now.0 - before.0).as_secs_f64().max(f64::MIN_POSITIVE);
            let new = hops::since(&before.1, now.1.clone());
            for (function, line) in &lines {
                let queued = self.queued(&function.name);
                line.0.set_message(rates(&function.name, &new, seconds, queued));
            }
            // The shims write once a second: what did not change yet is not a rate of 0.
            if !new.is_empty() || seconds > 2.0 {
                before = now;
            }
        }
    }
}

/// A line that is removed with its owner.
struct FunctionLine(Line);

impl Drop for FunctionLine {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// The calls to and from a function in the last `seconds`, and its waiting requests.
fn rates(function: &str, new: &[EdgeSnapshot], seconds: f64, queued: u64) -> String {
    let mut parts = Vec::new();
    let of = |hops: Vec<&EdgeSnapshot>, arrow: &str| {
        let calls: u64 = hops.iter().map(|hop| hop.counts.calls).sum();
        let bytes = hops.iter().map(|hop| hop.counts.request_bytes + hop.counts.response_bytes);
        let bytes: u64 = bytes.sum();
        let mut modes: Vec<_> = hops.iter().map(|hop| hop.key.mode_and_path()).collect();
        modes.dedup();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (calls, megabytes) = (calls as f64 / seconds, bytes as f64 / seconds / 1e6);
        format!("{arrow} {calls:.0} calls/s {megabytes:.1} MB/s {}", modes.join("+"))
    };
    let served: Vec<_> = new.iter().filter(|hop| hop.key.callee == function).collect();
    let made: Vec<_> = new.iter().filter(|hop| hop.key.caller == function).collect();
    if !served.is_empty() {
        parts.push(of(served, "in"));
    }
    if !made.is_empty() {
        parts.push(of(made, "out"));
    }
    if queued > 0 {
        parts.push(format!("queue {queued}"));
    }
    if parts.is_empty() { "running".to_owned() } else { parts.join("   ") }
}

fn fifo(path: &Path) -> Result<Receiver, Failure> {
    let made = mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(std::io::Error::from);
    // Open for writing, too: so it has no end while the function has not opened it yet.
    let opened = made.and_then(|()| OpenOptions::new().read_write(true).open_receiver(path));
    Ok(opened.with_context(|| format!("fifo {} cannot be made", path.display()))?)
}

impl Outputs {
    /// Copies what comes, until it is dropped or stdout cannot be written.
    async fn copy(&mut self, display: &Display) -> Failure {
        loop {
            let ready = tokio::select! {
                ready = self.stdout.readable() => ready,
                ready = self.stderr.readable() => ready,
            };
            if ready.is_err() {
                return std::future::pending().await;
            }
            if let Err(failure) = self.drain(display) {
                return failure;
            }
        }
    }

    /// Copies what is there.
    fn drain(&mut self, display: &Display) -> Result<(), Failure> {
        let mut chunk = vec![0; CHUNK];
        for (fifo, to_stderr) in [(&self.stdout, self.to_stderr), (&self.stderr, true)] {
            while let Ok(len @ 1..) = fifo.try_read(&mut chunk) {
                display.output(&chunk[..len], to_stderr)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cwasi_host::metrics::snapshot::{EdgeCounts, EdgeKey};

    use super::*;

    #[test]
    fn a_line_shows_what_a_function_serves_and_makes() {
        let hop = |caller: &str, callee: &str, mode: &str| EdgeSnapshot {
            key: EdgeKey {
                caller: caller.into(),
                callee: callee.into(),
                mode: mode.into(),
                ..EdgeKey::default()
            },
            reason: String::new(),
            counts: EdgeCounts { calls: 40, request_bytes: 4_000_000, ..EdgeCounts::default() },
            p50_us: 1.0,
            p99_us: 1.0,
            counted_since_ms: 0,
        };
        let new = [hop("a", "b", "local"), hop("b", "c", "networked")];
        assert_eq!(rates("a", &new, 2.0, 0), "out 20 calls/s 2.0 MB/s local");
        let both = "in 20 calls/s 2.0 MB/s local   out 20 calls/s 2.0 MB/s networked   queue 3";
        assert_eq!(rates("b", &new, 2.0, 3), both);
        assert_eq!(rates("d", &new, 2.0, 0), "running");
    }
}
