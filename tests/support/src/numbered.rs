//! Numbered calls: compares a caller's results with its callees' executions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::run::{Run, Running};
use crate::scene::wait_for;

/// Numbered calls of a caller, recorded by its callees: executions and results.
#[derive(Debug)]
pub struct Numbered {
    dir: tempfile::TempDir,
}

impl Default for Numbered {
    fn default() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }
}

impl Numbered {
    fn log(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).expect("a directory for a log");
        dir
    }

    /// A callee (`server`) that records its requests below `name`.
    #[must_use]
    pub fn noting(&self, name: &str, run: Run) -> Run {
        run.mount(&self.log(name), "/log", "rw")
    }

    /// A caller (`probe`) that calls `target` until [`Self::finish`].
    #[must_use]
    pub fn calling(&self, run: Run, target: &str) -> Run {
        run.mount(&self.log("caller"), "/out", "rw").args(["number", target, "/out"])
    }

    /// Requests that the callee recorded below `name`: number and call id.
    #[must_use]
    pub fn executed(&self, name: &str) -> Vec<(u64, String)> {
        let text = fs::read_to_string(self.log(name).join("executed")).unwrap_or_default();
        let line = |line: &str| {
            let (number, id) = line.split_once(' ')?;
            Some((number.parse().ok()?, id.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Waits until `name` has run `more` calls from now on.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for_more(&self, name: &str, more: usize) {
        let before = self.executed(name).len();
        wait_for(&format!("{more} more calls of {name}"), || {
            (self.executed(name).len() >= before + more).then_some(())
        });
    }

    /// Stops the caller. Returns the result of every call, by its number.
    ///
    /// # Panics
    /// When it ended otherwise.
    #[must_use]
    pub fn finish(&self, caller: Running) -> BTreeMap<u64, String> {
        fs::write(self.log("caller").join("stop"), "").expect("a file that stops the caller");
        let outcome = caller.finish().expect("the caller ends");
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        let text =
            fs::read_to_string(self.log("caller").join("ended")).expect("the caller notes ends");
        let line = |line: &str| {
            let (number, end) = line.split_once(' ').expect("number and end");
            (number.parse().expect("a number"), end.to_owned())
        };
        text.lines().map(line).collect()
    }

    /// Checks that ends and executions agree: every answered call ran once, none ran twice, and at most
    /// `unknown` calls ended without anybody knowing.
    ///
    /// # Panics
    /// When they do not agree.
    pub fn check(&self, callees: &[&str], ends: &BTreeMap<u64, String>, unknown: usize) {
        let executed: Vec<_> = callees.iter().flat_map(|name| self.executed(name)).collect();
        let numbers: BTreeSet<_> = executed.iter().map(|(number, _)| *number).collect();
        let ids: BTreeSet<_> = executed.iter().map(|(_, id)| id).collect();
        assert_eq!(numbers.len(), executed.len(), "a call ran twice");
        assert_eq!(ids.len(), executed.len(), "a call id ran twice");
        let others: Vec<_> = ends.iter().filter(|(_, end)| *end != "ok").collect();
        assert!(others.iter().all(|(_, end)| *end == "broken"), "{others:?}");
        assert!(others.len() <= unknown, "{others:?}");
        let answered = ends.iter().filter(|(_, end)| *end == "ok");
        assert!(answered.into_iter().all(|(number, _)| numbers.contains(number)));
        assert!(executed.len() <= ends.len() && executed.len() + others.len() >= ends.len());
    }
}
