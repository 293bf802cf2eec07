//! What a run leaves: `index.html` with tables and plots, `report.json`, `samples.csv`, a plot for each figure, and the
//! tables in the terminal.

mod page;
mod plot;
mod table;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use cwasi_bench::machine::Machine;
use serde::Serialize;

use crate::contents::{ABSENT_SIDES, CONTENTS, Entry, Status};
use crate::exhibit::{Exhibit, Form};

pub use table::kind;

/// A run's results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// How much was measured: `quick`, `full` or `smoke`.
    pub effort: &'static str,
    /// Of the repository.
    pub revision: String,
    /// Programs and their versions.
    pub versions: Vec<(String, String)>,
    pub exhibits: Vec<Exhibit>,
    /// Groups that an earlier run has measured, and its machine.
    pub before: Vec<(&'static str, String)>,
    /// Sides that this run could not have, and why.
    pub absent: Vec<(String, String)>,
    /// Entries that could not be measured, and why.
    pub failed: Vec<(String, String)>,
}

impl Report {
    /// Without results yet.
    #[must_use]
    pub fn new(machine: Machine, effort: &'static str, versions: Vec<(String, String)>) -> Self {
        let own = |(side, reason): (&str, &str)| (side.to_owned(), reason.to_owned());
        let absent = ABSENT_SIDES.map(own).to_vec();
        let (revision, exhibits, failed) = (String::new(), Vec::new(), Vec::new());
        let before = Vec::new();
        Self { machine, effort, revision, versions, before, exhibits, absent, failed }
    }

    #[must_use]
    pub fn exhibit(&self, id: &str) -> Option<&Exhibit> {
        self.exhibits.iter().find(|exhibit| exhibit.id == id)
    }

    fn failure(&self, id: &str) -> Option<&str> {
        let failed = self.failed.iter().find(|(failed, _)| failed == id);
        failed.map(|(_, reason)| reason.as_str())
    }

    /// Everything that it lacks, of the entries that `wanted` chooses.
    #[must_use]
    pub fn problems(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        for entry in CONTENTS.iter().filter(|entry| entry.is_measured() && wanted(entry)) {
            let problem = match (self.failure(entry.id), self.exhibit(entry.id)) {
                (Some(reason), _) => Some(reason.to_owned()),
                (None, None) => Some("it is not in the report".to_owned()),
                (None, Some(exhibit)) => exhibit.flaw(),
            };
            problems.extend(problem.map(|problem| format!("{}: {problem}", entry.id)));
        }
        let known = |id: &str| CONTENTS.iter().any(|entry| entry.id == id && entry.is_measured());
        let unknown = self.exhibits.iter().filter(|exhibit| !known(&exhibit.id));
        problems.extend(unknown.map(|exhibit| format!("{}: no table or figure", exhibit.id)));
        // What fails after its entries were measured (a leftover, say) fails the run all the same.
        let others = self.failed.iter().filter(|(id, _)| !known(id));
        problems.extend(others.map(|(what, reason)| format!("{what}: {reason}")));
        problems
    }

    /// Writes all files.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for exhibit in self.exhibits.iter().filter(|exhibit| exhibit.form != Form::Table) {
            fs::write(folder.join(format!("{}.svg", exhibit.id)), plot::draw(exhibit)?)?;
        }
        fs::write(folder.join("report.json"), serde_json::to_vec_pretty(self)?)?;
        fs::write(folder.join("samples.csv"), self.samples()?)?;
        fs::write(folder.join("tables.txt"), self.text()?)?;
        fs::write(folder.join("conditions.md"), self.conditions()?)?;
        fs::write(folder.join("index.html"), page::page(self)?)?;
        Ok(())
    }

    /// The machine, the programs, and how each table or figure was measured.
    fn conditions(&self) -> Result<String> {
        let Self { effort, revision, machine, .. } = self;
        let mut text = format!("{effort} run of revision {revision}. {}\n", machine.sentence());
        for (group, machine) in &self.before {
            writeln!(text, "\n- {group}: from an earlier run of the same revision, {machine}")?;
        }
        for (name, version) in &self.versions {
            writeln!(text, "\n- {name}: {version}")?;
        }
        for exhibit in &self.exhibits {
            writeln!(text, "\n## {}\n\n{}", exhibit.id, exhibit.conditions)?;
        }
        Ok(text)
    }

    /// One line for each sample.
    fn samples(&self) -> Result<String> {
        let mut text = "exhibit,side,case,unit,sample\n".to_owned();
        for exhibit in &self.exhibits {
            for series in &exhibit.series {
                for sample in &series.samples {
                    let (side, case, unit) = (&series.side, &series.case, &series.unit);
                    writeln!(text, "{},\"{side}\",\"{case}\",{unit},{sample}", exhibit.id)?;
                }
            }
        }
        Ok(text)
    }

    /// All tables, for the terminal.
    ///
    /// # Errors
    /// Never in memory.
    pub fn text(&self) -> Result<String> {
        let mut text = String::new();
        for entry in &CONTENTS {
            let Some(exhibit) = self.exhibit(entry.id) else { continue };
            let paper = serde_json::to_value(entry.paper)?;
            let paper = paper.as_str().unwrap_or_default();
            writeln!(text, "\n{paper}, {}: {}", entry.name, entry.about)?;
            text += &table::text(exhibit)?;
        }
        writeln!(text, "\nnot measured:")?;
        for entry in &CONTENTS {
            if let Status::Absent(reason) = entry.status {
                writeln!(text, "  {} ({}): {reason}", entry.name, entry.about)?;
            }
        }
        for (side, reason) in &self.absent {
            writeln!(text, "  {side}: {reason}")?;
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Series;

    /// A report with two series for every entry that has a measurement.
    fn complete() -> Report {
        let mut report = Report::new(Machine::read(), "smoke", vec![("runc".into(), "1.1".into())]);
        for entry in CONTENTS.iter().filter(|entry| entry.is_measured()) {
            let of = |side: &str, case: &str, first: f64| {
                Series::new(side, case, "ms", vec![first, 2.0 * first, 4.0 * first])
            };
            let series =
                vec![of("cwasi <local>", "1", 1.0), of("runc", "1", 2.0), of("runc", "10", 3.0)];
            let exhibit = Exhibit::new(entry.id, Form::Lines, "in turns", series);
            report
                .exhibits
                .push(exhibit.published(&[("OpenFaaS", "1", 7.5)]).tested("cwasi <local>"));
        }
        report
    }

    #[test]
    fn a_report_lacks_nothing_until_something_is_taken_away() {
        let report = complete();
        assert_eq!(report.problems(|_| true), Vec::<String>::new());
        let mut lost = report.clone();
        let gone = lost.exhibits.remove(3);
        assert_eq!(lost.problems(|_| true), [format!("{}: it is not in the report", gone.id)]);
        assert!(lost.problems(|entry| entry.id != gone.id).is_empty());
        let mut failed = report.clone();
        failed.failed.push(("wow-figure-4".into(), "no runc".into()));
        failed.failed.push(("cold starts".into(), "left behind".into()));
        assert_eq!(
            failed.problems(|_| true),
            ["wow-figure-4: no runc", "cold starts: left behind"]
        );
        let mut empty = report.clone();
        empty.exhibits[0].series[0].samples.clear();
        assert_eq!(empty.problems(|_| true).len(), 1);
        let mut unknown = report;
        unknown.exhibits[0].id = "cwasi-figure-99".into();
        assert_eq!(unknown.problems(|_| true).len(), 2);
    }

    #[test]
    fn every_entry_is_on_the_page_measured_or_not() {
        let report = complete();
        let folder = tempfile::tempdir().unwrap();
        report.write(folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join("index.html")).unwrap();
        for entry in &CONTENTS {
            assert!(page.contains(&format!("id=\"{}\"", entry.id)), "{}", entry.id);
            let plot = folder.path().join(format!("{}.svg", entry.id));
            assert_eq!(plot.exists(), entry.is_measured(), "{}", entry.id);
            if let Status::Absent(reason) | Status::Questioned(reason) = entry.status {
                assert!(page.contains(reason), "{reason}");
            }
        }
        for (side, reason) in ABSENT_SIDES {
            assert!(page.contains(side) && page.contains(reason), "{side}");
        }
        assert!(page.contains("cwasi &lt;local&gt;") && !page.contains("cwasi <local>"));
        let samples = fs::read_to_string(folder.path().join("samples.csv")).unwrap();
        let measured = CONTENTS.iter().filter(|entry| entry.is_measured()).count();
        assert_eq!(samples.lines().count(), 1 + 9 * measured);
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(folder.path().join("report.json")).unwrap()).unwrap();
        assert_eq!(json["exhibits"].as_array().unwrap().len(), measured);
    }

    #[test]
    fn one_exhibits_table_is_as_it_was() {
        let report = complete();
        let text = table::text(report.exhibit("operator-serial").unwrap()).unwrap();
        let golden = concat!(
            "  case                 side                                                    n      p25      p50      p75     mean       SD  CoV %  ms\n",
            "  1                    cwasi <local>                                           3     1.00     2.00     4.00     2.33     1.53   65.5\n",
            "  1                    runc                                                    3     2.00     4.00     8.00     4.67     3.06   65.5  2.00× cwasi <local>, p = 0.37\n",
            "  1                    (paper) OpenFaaS                                                                         7.50\n",
            "  10                   runc                                                    3     3.00     6.00     12.0     7.00     4.58   65.5\n",
        );
        assert_eq!(text, golden, "\n{text}");
    }
}
