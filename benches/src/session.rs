//! One run of the harness: its cases, their amounts and results. A case that could not run is an entry with its
//! reason.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use anyhow::Result;

use crate::peers::Peer;
use crate::plan::{Effort, Turns};
use crate::report::{Entry, Report};
use crate::turns::Contestant;

/// A run under way.
pub struct Session {
    /// How much is measured.
    pub effort: Effort,
    /// Folder with the runtime's programs, and this one.
    pub programs: PathBuf,
    pub report: Report,
    filter: String,
}

impl Session {
    /// A run of the cases whose name contains `filter`.
    #[must_use]
    pub fn new(effort: Effort, programs: PathBuf, filter: &str) -> Self {
        Self { effort, programs, report: Report::new(), filter: filter.to_owned() }
    }

    /// True for a case that was asked for.
    #[must_use]
    pub fn wants(&self, case: &str) -> bool {
        case.contains(&self.filter)
    }

    /// Runs one case of a group, which makes the entries of these names; when it fails, the others go on.
    pub fn case(&mut self, entries: &[String], run: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = caught(|| run(self)) {
            for entry in entries {
                self.report.add(Entry::failed(entry, &format!("{error:#}")));
            }
        }
    }

    /// A baseline that takes its turns with the same job as ours.
    ///
    /// # Errors
    /// When it does not start.
    pub fn contestant(&self, peer: &Peer, job: &cwasi_bench_protocol::Job) -> Result<Contestant> {
        let side = peer.start(&std::env::current_exe()?)?;
        Ok(Contestant { name: peer.name(), side, job: job.clone() })
    }

    /// Turns for payloads of this length, as text for the conditions.
    #[must_use]
    pub fn turns_text(turns: Turns) -> String {
        format!("{} rounds of {} in turns, after one to warm up", turns.rounds, turns.block)
    }
}

/// The test bed fails by panics; here they are errors like others.
pub fn caught(run: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow::anyhow!(panic_message(&*panic))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
