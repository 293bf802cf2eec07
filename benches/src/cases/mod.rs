//! The measured cases, in groups that share their containers.

mod answers;
mod burst;
mod components;
mod compute;
mod embedded;
mod fan;
mod gateway;
mod http;
mod http_overload;
mod idle;
mod languages;
mod load;
pub(crate) mod memory;
pub(crate) mod network;
mod network_callers;
mod processor;
pub(crate) mod sequential;
pub(crate) mod starts;

use anyhow::Result;

use crate::plan::Effort;
use crate::report::Entry;
use crate::session::{Session, caught};

/// Cases that share their containers.
pub struct Group {
    pub name: &'static str,
    /// What it measures, in a few words.
    pub about: &'static str,
    /// Names of the entries that it makes.
    pub cases: fn(Effort) -> Vec<String>,
    /// Runs the ones of these names.
    pub run: fn(&mut Session, &[String]) -> Result<()>,
}

impl Group {
    /// Runs those of its cases that were asked for.
    pub fn measure(&self, session: &mut Session) {
        let names = (self.cases)(session.effort);
        let wanted: Vec<String> = names.into_iter().filter(|case| session.wants(case)).collect();
        if wanted.is_empty() {
            return;
        }
        eprintln!("\n{}: {}", self.name, self.about);
        let ended = caught(|| (self.run)(session, &wanted));
        let reason = ended.err().map(|error| format!("{error:#}"));
        for case in &wanted {
            if !session.report.entries.iter().any(|entry| entry.case == *case) {
                let reason = reason.as_deref().unwrap_or("it gave no result");
                session.report.add(Entry::failed(case, reason));
            }
        }
        // What fails after its cases were measured (a leftover, say) fails the run all the same.
        if let Some(reason) = reason {
            session.report.add(Entry::failed(self.name, &reason));
        }
    }
}

/// All groups, in the order in which they run.
pub const GROUPS: [Group; 20] = [
    sequential::GROUP,
    answers::GROUP,
    fan::OUT,
    fan::IN,
    embedded::GROUP,
    components::CALLS,
    languages::GROUP,
    compute::GROUP,
    network::GROUP,
    network::CABLES,
    network_callers::GROUP,
    processor::GROUP,
    starts::GROUP,
    burst::GROUP,
    memory::GROUP,
    idle::GROUP,
    load::GROUP,
    http::GROUP,
    components::HTTP,
    http_overload::GROUP,
];

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn group(run: fn(&mut Session, &[String]) -> Result<()>) -> Group {
        Group { name: "group", about: "", cases: |_| vec!["one".into(), "two".into()], run }
    }

    fn failures(
        filter: &str,
        run: fn(&mut Session, &[String]) -> Result<()>,
    ) -> Vec<(String, String)> {
        let mut session = Session::new(Effort::Smoke, PathBuf::new(), filter);
        group(run).measure(&mut session);
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
