//! One run of the harness: its cases, their amounts and results. A case that could not run is an entry with its
//! reason.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use anyhow::Result;

use crate::cases::Group;
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

    /// Runs the cases of a group that were asked for.
    pub fn run(&mut self, group: &Group) {
        let names = (group.cases)(self.effort);
        let wanted: Vec<String> = names.into_iter().filter(|case| self.wants(case)).collect();
        if wanted.is_empty() {
            return;
        }
        eprintln!("\n{}: {}", group.name, group.about);
        let ended = caught(|| (group.run)(self, &wanted));
        let reason = ended.err().map(|error| format!("{error:#}"));
        for case in &wanted {
            if !self.report.entries.iter().any(|entry| entry.case == *case) {
                let reason = reason.as_deref().unwrap_or("it gave no result");
                self.report.add(Entry::failed(case, reason));
            }
        }
        // What fails after its cases were measured (a leftover, say) fails the run all the same.
        if let Some(reason) = reason {
            self.report.add(Entry::failed(group.name, &reason));
        }
    }

    /// Runs one case of a group, which makes the entries of these names; when it fails, the others go on.
    pub fn case(&mut self, entries: &[String], run: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = caught(|| run(self)) {
            for entry in entries {
                self.report.add(Entry::failed(entry, &format!("{error:#}")));
            }
        }
    }

    /// A baseline that takes its turns with the same order as ours.
    ///
    /// # Errors
    /// When it does not start.
    pub fn contestant(
        &self,
        peer: &Peer,
        order: &cwasi_bench_protocol::Order,
    ) -> Result<Contestant> {
        let side = peer.start(&std::env::current_exe()?)?;
        Ok(Contestant { name: peer.name(), side, order: order.clone() })
    }

    /// Turns for payloads of this length, as text for the conditions.
    #[must_use]
    pub fn turns_text(turns: Turns) -> String {
        format!("{} rounds of {} in turns, after one to warm up", turns.rounds, turns.block)
    }
}

/// The test bed fails by panics; here they are errors like others.
fn caught(run: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(anyhow::anyhow!(said(&*panic))))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(run: fn(&mut Session, &[String]) -> Result<()>) -> Group {
        Group { name: "group", about: "", cases: |_| vec!["one".into(), "two".into()], run }
    }

    fn failures(
        filter: &str,
        run: fn(&mut Session, &[String]) -> Result<()>,
    ) -> Vec<(String, String)> {
        let mut session = Session::new(Effort::Smoke, PathBuf::new(), filter);
        session.run(&group(run));
        let failures = session.report.failures().into_iter();
        failures.map(|one| (one.case.clone(), one.failed.clone().unwrap())).collect()
    }

    #[test]
    fn what_cannot_run_is_an_entry_with_its_reason() {
        let each = |filter| failures(filter, |_, _| anyhow::bail!("no fixture"));
        assert_eq!(
            each("two"),
            [("two".into(), "no fixture".into()), ("group".into(), "no fixture".into())]
        );
        assert_eq!(each("").len(), 3);
        assert!(each("three").is_empty());
        let silent = failures("one", |_, _| Ok(()));
        assert_eq!(silent, [("one".into(), "it gave no result".into())]);
        let panicked = failures("one", |_, _| panic!("left behind: {}", 3));
        assert_eq!(panicked[0], ("one".into(), "left behind: 3".into()));
    }

    #[test]
    fn one_failed_case_leaves_the_others_alone() {
        let found = failures("", |session, cases| {
            for case in cases {
                session.case(std::slice::from_ref(case), |_| anyhow::bail!("not {case}"));
            }
            Ok(())
        });
        assert_eq!(found, [("one".into(), "not one".into()), ("two".into(), "not two".into())]);
    }
}
