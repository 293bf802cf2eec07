//! `cwasi logs`: what functions wrote, from the files that `run` and `deploy` make for secondaries.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use super::selected::selected;
use crate::arguments::Global;
use crate::deployment::Node;
use crate::deployment::platform::Platform as _;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are copied at once.
const CHUNK: usize = 64 * 1024;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Logs {
    /// Containers or functions
    #[arg(required_unless_present = "workflow", value_name = "NAME")]
    names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    workflow: Option<String>,
    /// Go on until the functions end, or until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

/// The log of one container.
struct Log {
    id: String,
    file: File,
    /// An unfinished line.
    rest: Vec<u8>,
}

impl Logs {
    /// Prints them; lines of several containers with the container's id.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        let mut logs = Vec::new();
        for container in selected(containers, &self.names, self.workflow.as_deref(), global)? {
            let path = node.log(&container.id);
            let file = File::open(&path).with_context(|| {
                format!(
                    "{} has no log at {}: cwasi run and cwasi deploy make one for each secondary",
                    container.id,
                    path.display()
                )
            });
            let file = file.map_err(|error| Failure::new(Exit::Missing, error))?;
            logs.push(Log { id: container.id, file, rest: Vec::new() });
        }
        let named = logs.len() > 1;
        let mut interrupt = Interrupt::new()?;
        loop {
            // Before the last look: what was written before the end is read.
            let tasks = node.containerd.tasks().await?;
            let alive = |log: &Log| tasks.get(&log.id).is_some_and(|task| task.is_alive());
            let goes_on = self.follow && logs.iter().any(alive);
            for log in &mut logs {
                log.copy(named, !goes_on)?;
            }
            if !goes_on {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::select! {
                () = interrupt.received() => return Ok(ExitCode::SUCCESS),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

impl Log {
    /// Prints the new lines; the unfinished one only at the end.
    fn copy(&mut self, named: bool, end: bool) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let mut chunk = vec![0; CHUNK];
        loop {
            let len = self.file.read(&mut chunk)?;
            self.rest.extend_from_slice(&chunk[..len]);
            let lines = match self.rest.iter().rposition(|byte| *byte == b'\n') {
                Some(last) => self.rest.drain(..=last).collect(),
                None if end && len == 0 => std::mem::take(&mut self.rest),
                None => Vec::new(),
            };
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                if named {
                    write!(out, "{} | ", self.id)?;
                }
                out.write_all(line)?;
            }
            if len == 0 {
                return Ok(out.flush()?);
            }
        }
    }
}
