//! `cwasi trace`: the traces that were recorded on this node, and the waterfall of one.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use cwasi_config::NodeConfig;
use serde_json::json;

use crate::arguments::Global;
use crate::deployment::user_state;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::table::Table;
use crate::traces::{self, PREFIX_MIN, Recorded, Trace, duration, page, waterfall};

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
    id: Option<String>,
    /// Write the waterfall as one HTML page
    #[arg(long, value_name = "FILE", requires = "id")]
    html: Option<PathBuf>,
    /// Most traces in the list
    #[arg(short, long, default_value_t = 20, value_name = "N")]
    limit: usize,
}

impl ShowTrace {
    /// Prints the list or one trace.
    pub fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let config = NodeConfig::load(None, None)?;
        let of_user = user_state();
        let folders = [Some(config.state_dir.as_path()), of_user.as_deref()];
        let recorded = traces::read(&folders.into_iter().flatten().collect::<Vec<_>>());
        match &self.id {
            None => {
                self.list(&recorded, global)?;
                note_of_dropped(recorded.dropped);
            }
            Some(id) => self.print(find(&recorded, id)?, global)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self, recorded: &Recorded, global: &Global) -> Result<(), Failure> {
        let newest = &recorded.traces[..recorded.traces.len().min(self.limit)];
        if global.json {
            let lines: Vec<_> = newest.iter().map(summary).collect();
            return output::json(&lines);
        }
        if newest.is_empty() {
            output::note(
                "cwasi: no trace was recorded on this node; cwasi run and cwasi invoke --trace record one",
            );
        }
        let mut table = Table::new(["TRACE", "BEGUN", "DURATION", "SPANS", "ERRORS", "WHAT"]);
        for trace in newest {
            table.row([
                trace.id.to_string()[..DIGITS].to_owned(),
                begun(trace),
                duration(trace.duration_ns()),
                trace.spans.len().to_string(),
                trace.errors().to_string(),
                trace.title(),
            ]);
        }
        if !table.is_empty() {
            output::text(table)?;
        }
        Ok(())
    }

    fn print(&self, trace: &Trace, global: &Global) -> Result<(), Failure> {
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
                output::note(
                    "\ncwasi: spans with ... have a parent that this node does not have: another node recorded it, \
                     or it was not kept",
                );
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

fn summary(trace: &Trace) -> serde_json::Value {
    json!({
        "trace": trace.id,
        "start_ns": trace.start_ns(),
        "duration_ns": trace.duration_ns(),
        "spans": trace.spans.len(),
        "errors": trace.errors(),
        "title": trace.title(),
    })
}

/// The one trace whose id begins like this.
fn find<'a>(recorded: &'a Recorded, id: &str) -> Result<&'a Trace, Failure> {
    let id = id.to_ascii_lowercase();
    if id.len() < PREFIX_MIN {
        let text =
            format!("{id} is too short: give at least {PREFIX_MIN} digits of the trace's id");
        return Err(Failure::text(Exit::Usage, text));
    }
    match recorded.find(&id).as_slice() {
        [trace] => Ok(trace),
        [] => {
            let text = format!("no trace {id} on this node: cwasi trace lists what is kept");
            Err(Failure::text(Exit::Missing, text))
        }
        several => {
            let text = format!("{} traces begin with {id}: give more digits", several.len());
            Err(Failure::text(Exit::Usage, text))
        }
    }
}

/// How long ago it began.
fn begun(trace: &Trace) -> String {
    let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(trace.start_ns());
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
