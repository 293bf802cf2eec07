//! `cwasi trace`: the traces that were recorded on this node or on those of a cluster, and the waterfall of one.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use cwasi_config::NodeConfig;

use crate::arguments::{Global, NodeArguments};
use crate::deployment::user_state;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::table::Table;
use crate::traces::summary::Summary;
use crate::traces::{self, PREFIX_MIN, Trace, duration, page, waterfall};

/// Columns of the waterfall when stdout is no terminal and `COLUMNS` says nothing.
const WIDTH_DEFAULT: usize = 100;
/// Units in which the list says how long ago a trace began.
const AGO_UNITS: usize = 2;
/// Digits of an id in the list.
const DIGITS: usize = 8;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct ShowTrace {
    /// The first digits of the trace's id, or `last`; without one, recent traces are listed
    pub id: Option<String>,
    /// Write the waterfall as one HTML page
    #[arg(long, value_name = "FILE", requires = "id")]
    pub html: Option<PathBuf>,
    /// Most traces in the list
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    pub limit: usize,
    #[command(flatten)]
    pub on: NodeArguments,
}

impl ShowTrace {
    /// Prints the list or one trace.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let config = NodeConfig::load(None, None)?;
        let of_user = user_state()?;
        let folders = [Some(config.state_dir.as_path()), of_user.as_deref()];
        let recorded = traces::read(&folders.into_iter().flatten().collect::<Vec<_>>());
        match &self.id {
            None => {
                let newest: Vec<_> =
                    recorded.traces.iter().take(self.limit).map(Summary::of).collect();
                list(&newest, global, "on this node")?;
                note_of_dropped(recorded.dropped);
            }
            Some(id) => {
                let found = recorded.find(&prefix(id)?);
                self.print(one(&found, id, "on this node")?, global, "this node does not have")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints one trace; `missing` says who does not have a span's parent.
    ///
    /// # Errors
    /// When stdout or the page cannot be written.
    pub fn print(&self, trace: &Trace, global: &Global, missing: &str) -> Result<(), Failure> {
        if let Some(file) = &self.html {
            fs::write(file, page::html(trace))
                .with_context(|| format!("{} cannot be written", file.display()))?;
            output::note(format_args!("cwasi: wrote {}", file.display()));
        }
        if global.json {
            output::json(trace)?;
        } else if self.html.is_none() {
            let (id, whole) = (trace.id, duration(trace.duration_ns()));
            output::line(format_args!("{id}  {whole}  {} spans\n", trace.spans.len()))?;
            output::text(waterfall::text(trace, width()))?;
            if trace.spans.iter().any(|span| !span.has_parent) {
                output::note(format_args!(
                    "\ncwasi: spans with ... have a parent that {missing}: another node recorded it, or it was not kept"
                ));
            }
        }
        Ok(())
    }
}

/// Says how many spans were not kept: with the list, because the number is of the node and not of a trace.
fn note_of_dropped(dropped: u64) {
    if dropped > 0 {
        output::note(format_args!(
            "cwasi: {dropped} spans of this node were not kept (docs/tracing.md)"
        ));
    }
}

/// Prints traces, the newest first; `place` is where they were looked for.
///
/// # Errors
/// When stdout cannot be written.
pub fn list(newest: &[Summary], global: &Global, place: &str) -> Result<(), Failure> {
    if global.json {
        return output::json(&newest);
    }
    if newest.is_empty() {
        output::note(format_args!(
            "cwasi: no trace was recorded {place}; cwasi run and cwasi invoke --trace record one"
        ));
    }
    let mut table = Table::new(["TRACE", "BEGUN", "DURATION", "SPANS", "ERRORS", "WHAT"]);
    for trace in newest {
        table.row([
            trace.trace.to_string()[..DIGITS].to_owned(),
            begun(trace),
            duration(trace.duration_ns),
            trace.spans.to_string(),
            trace.errors.to_string(),
            trace.title.clone(),
        ]);
    }
    if !table.is_empty() {
        output::text(table)?;
    }
    Ok(())
}

/// The first digits of an id, or `last`.
///
/// # Errors
/// When they are too few.
pub fn prefix(id: &str) -> Result<String, Failure> {
    let id = id.to_ascii_lowercase();
    if id.len() < PREFIX_MIN {
        let text =
            format!("{id} is too short: give at least {PREFIX_MIN} digits of the trace's id");
        return Err(Failure::text(Exit::Usage, text));
    }
    Ok(id)
}

/// The only one of the traces whose id begins with `id`.
///
/// # Errors
/// When there is none, or several.
pub fn one<'a>(found: &[&'a Trace], id: &str, place: &str) -> Result<&'a Trace, Failure> {
    match found {
        [trace] => Ok(trace),
        [] => {
            let text = format!("no trace {id} {place}: cwasi trace lists what is kept");
            Err(Failure::text(Exit::Missing, text))
        }
        several => {
            let text = format!("{} traces begin with {id}: give more digits", several.len());
            Err(Failure::text(Exit::Usage, text))
        }
    }
}

/// How long ago it began.
fn begun(trace: &Summary) -> String {
    let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(trace.start_ns);
    let ago = began.elapsed().unwrap_or_default();
    let ago = humantime::format_duration(Duration::from_secs(ago.as_secs())).to_string();
    let largest: Vec<&str> = ago.split(' ').take(AGO_UNITS).collect();
    format!("{} ago", largest.join(" "))
}

/// Columns for the waterfall.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || console::Term::stdout().size_checked().map(|(_, columns)| columns.into());
    columns.or_else(terminal).unwrap_or(WIDTH_DEFAULT)
}
