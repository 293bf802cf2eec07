//! `cwasi logs`: what functions wrote, from the files that `run` and `deploy` make for secondaries.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;

use super::log_printer::{LogPrinter, Shown};
use super::selected::selected;
use crate::arguments::{ClusterArguments, Global};
use crate::deployment::Node;
use crate::deployment::log_file::LogFile;
use crate::deployment::platform::Platform as _;
use crate::duration;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// Between two polls of the files.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are copied at once.
const CHUNK: usize = 64 * 1024;

/// The end of what is followed.
const FOLLOWED: &str =
    "cwasi: what was followed has ended; after a new deploy, logs -f follows the new containers";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Logs {
    /// Containers or functions; with --kube WORKFLOW or WORKFLOW/FUNCTION
    #[arg(required_unless_present = "workflow", value_name = "NAME")]
    pub names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    pub workflow: Option<String>,
    /// Go on until the functions end, or until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print the times of lines that have one: the runtime's, and those of a function's `log`
    #[arg(short, long)]
    pub timestamps: bool,
    /// Only lines since then: a duration such as 10m, or a time such as 2026-11-23T04:31:45Z
    ///
    /// A line without a time counts as the line before it. Lines before the first time are printed.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<SystemTime>,
    /// Only this many lines from the end of each log
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Print the bytes as they are: terminals obey the control characters among them
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The log of one container.
struct Log {
    file: LogFile,
    printer: LogPrinter,
}

fn since(text: &str) -> Result<SystemTime, String> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time);
    }
    let ago = duration::parse(text)
        .map_err(|error| format!("{error}; a time looks like 2026-11-23T04:31:45Z"))?;
    SystemTime::now().checked_sub(ago).ok_or_else(|| "so long ago there was no time".to_owned())
}

impl Logs {
    /// Prints them; lines of several containers with the container's id.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        let containers = selected(containers, &self.names, self.workflow.as_deref(), global)?;
        let Self { since, tail, timestamps, raw, .. } = self;
        let json = global.json;
        let named = !json && containers.len() > 1;
        let shown = Shown { since, tail, timestamps, named, json, raw };
        let mut logs = Vec::new();
        for container in containers {
            let path = node.log(&container.id);
            let file = LogFile::open(&path).with_context(|| {
                format!(
                    "{} has no log at {}: cwasi run and cwasi deploy make one for each secondary",
                    container.id,
                    path.display()
                )
            });
            let file = file.map_err(|error| Failure::new(Exit::Missing, error))?;
            let function = container.function().to_owned();
            logs.push(Log { file, printer: LogPrinter::new(container.id, function, shown) });
        }
        let mut interrupt = Interrupt::new()?;
        loop {
            // Before the last poll: what was written before the end is read.
            let tasks = node.containerd.tasks().await?;
            let alive = |log: &Log| tasks.get(log.printer.id()).is_some_and(|it| it.is_alive());
            let goes_on = self.follow && logs.iter().any(alive);
            for log in &mut logs {
                log.copy(&mut io::stdout().lock(), !goes_on)?;
            }
            if !goes_on {
                if self.follow {
                    output::note(FOLLOWED);
                }
                return Ok(ExitCode::SUCCESS);
            }
            tokio::select! {
                exit = interrupt.received() => return Ok(exit.into()),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

impl Log {
    /// Prints the new lines; the unfinished one only at the end.
    fn copy(&mut self, out: &mut impl io::Write, end: bool) -> Result<(), Failure> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = self.file.read(&mut chunk);
            let id = self.printer.id();
            let len = read.with_context(|| format!("the log of {id} cannot be read"))?;
            let printed = match len {
                0 => self.printer.rest(out, end),
                _ => self.printer.push(&chunk[..len], out),
            };
            printed.map_err(output::failure)?;
            if len == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_duration_or_a_moment() {
        let now = SystemTime::now();
        let ago = now.duration_since(since("10m").unwrap()).unwrap_or_default();
        assert!(ago <= Duration::from_secs(600) && ago > Duration::from_secs(500), "{ago:?}");
        for (text, part) in [("soon", "looks like"), ("9999999999999y", "")] {
            assert!(since(text).unwrap_err().contains(part), "{text}");
        }
    }
}
