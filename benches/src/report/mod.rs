//! The results of a run: `report.json` for machines and `report.html` for people.

pub mod bars;
pub mod charts;
pub mod page;
mod paper;
pub mod terminal;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::machine::Machine;
use crate::stats::{Distribution, Ratio, Rounds};
use crate::turns::Measured;
pub use bars::{BARS, Bar, Verdict};

/// What is compared in a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Baseline by ours; for times, above 1 ours is better.
    BaselineByOurs,
    /// Ours by baseline; for times, below 1 ours is better, and the other way round for rates.
    OursByBaseline,
}

/// One case beside one baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    pub case: String,
    /// Unit of the numbers; ratios have none.
    pub unit: &'static str,
    /// Ours: smallest.
    pub ours_min: Option<f64>,
    pub ours_p50: Option<f64>,
    /// Ours: 99th percentile.
    pub ours_p99: Option<f64>,
    /// What ours is compared with; `none` for what has no counterpart.
    pub baseline: String,
    /// Baseline: smallest.
    pub baseline_min: Option<f64>,
    pub baseline_p50: Option<f64>,
    /// Baseline: 99th percentile.
    pub baseline_p99: Option<f64>,
    /// Ratio of the medians.
    pub ratio: Option<f64>,
    /// First quartile of the rounds' ratios.
    pub ratio_low: Option<f64>,
    /// Third quartile of the rounds' ratios.
    pub ratio_high: Option<f64>,
    /// What the ratio compares.
    pub direction: Direction,
    /// Measured repeats of ours.
    pub repeats: usize,
    /// What was measured, and how.
    pub conditions: String,
    /// The bar for it, if there is one.
    pub bar: Option<String>,
    /// Whether it is met.
    pub met: Option<bool>,
    /// Why there are no numbers.
    pub failed: Option<String>,
}

impl Entry {
    /// One without numbers, because of `reason`.
    #[must_use]
    pub fn failed(case: &str, reason: &str) -> Self {
        Self {
            failed: Some(reason.to_owned()),
            ..Self::blank(case, "us", "none", Direction::BaselineByOurs, String::new())
        }
    }

    fn blank(
        case: &str,
        unit: &'static str,
        baseline: &str,
        direction: Direction,
        conditions: String,
    ) -> Self {
        Self {
            case: case.to_owned(),
            unit,
            ours_min: None,
            ours_p50: None,
            ours_p99: None,
            baseline: baseline.to_owned(),
            baseline_min: None,
            baseline_p50: None,
            baseline_p99: None,
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            direction,
            repeats: 0,
            conditions,
            bar: None,
            met: None,
            failed: None,
        }
    }
}

/// Two sides' samples on their way to an [`Entry`].
pub struct Comparison<'a> {
    /// Name of the case.
    pub case: &'a str,
    /// Unit of the samples.
    pub unit: &'static str,
    pub ours: &'a Rounds,
    /// Name and samples of a baseline, if there is one.
    pub baseline: Option<(&'a str, &'a Rounds)>,
    /// What the ratio compares.
    pub direction: Direction,
    /// What was measured, and how.
    pub conditions: String,
}

impl From<Comparison<'_>> for Entry {
    fn from(compared: Comparison<'_>) -> Self {
        let (name, theirs) = compared.baseline.unzip();
        let name = name.unwrap_or("none");
        let mut entry = Self::blank(
            compared.case,
            compared.unit,
            name,
            compared.direction,
            compared.conditions,
        );
        match Distribution::of(&compared.ours.all()) {
            Some(ours) => {
                entry.ours_min = Some(ours.min);
                entry.ours_p50 = Some(ours.p50);
                entry.ours_p99 = Some(ours.p99);
                entry.repeats = ours.repeats;
            }
            None => entry.failed = Some("no samples".to_owned()),
        }
        if let Some(theirs) = theirs {
            match Distribution::of(&theirs.all()) {
                Some(theirs) => {
                    entry.baseline_min = Some(theirs.min);
                    entry.baseline_p50 = Some(theirs.p50);
                    entry.baseline_p99 = Some(theirs.p99);
                }
                None => entry.failed = Some(format!("no samples of {name}")),
            }
            let ratio = match compared.direction {
                Direction::BaselineByOurs => Ratio::of(theirs, compared.ours),
                Direction::OursByBaseline => Ratio::of(compared.ours, theirs),
            };
            entry.ratio = ratio.map(|ratio| ratio.value);
            entry.ratio_low = ratio.map(|ratio| ratio.low);
            entry.ratio_high = ratio.map(|ratio| ratio.high);
        }
        entry
    }
}

/// All entries of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// What they were taken on.
    pub machine: Machine,
    /// One for each case and baseline.
    pub entries: Vec<Entry>,
}

impl Report {
    /// Of a run that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { machine: Machine::read(), entries: Vec::new() }
    }

    /// Adds an entry, judged by its bar.
    pub fn add(&mut self, entry: impl Into<Entry>) {
        let mut entry = entry.into();
        if let Some(bar) = bars::of(&entry) {
            entry.bar = Some(bar.limit.to_string());
            entry.met = Some(bar.judge(&entry) == Verdict::Met);
        }
        terminal::print(&entry);
        self.entries.push(entry);
    }

    /// Adds what sides that took turns measured: `case` for deliveries, `case-call` for calls. Ours comes first.
    pub fn add_turns(&mut self, case: &str, conditions: &str, measured: &[Measured]) {
        // A ping-pong says nothing about when the payload is there.
        let deliveries = measured.iter().filter(|one| one.name != "uds-pingpong").cloned();
        let deliveries: Vec<Measured> = deliveries.collect();
        self.add_each(case, conditions, &deliveries, |one| &one.delivery);
        self.add_calls(case, conditions, measured);
    }

    /// As [`Self::add_turns`], for calls alone.
    pub fn add_calls(&mut self, case: &str, conditions: &str, measured: &[Measured]) {
        self.add_each(&format!("{case}-call"), conditions, measured, |one| &one.call);
    }

    fn add_each(
        &mut self,
        case: &str,
        conditions: &str,
        measured: &[Measured],
        part: fn(&Measured) -> &Rounds,
    ) {
        let Some((ours, baselines)) = measured.split_first() else {
            return self.add(Entry::failed(case, "no side took part"));
        };
        for baseline in baselines.iter().filter(|one| LISTED.contains(&one.name)) {
            self.add(Comparison {
                case,
                unit: "us",
                ours: part(ours),
                baseline: Some((baseline.name, part(baseline))),
                direction: bars::direction(case, baseline.name),
                conditions: format!("{conditions}{}", beside(ours, baselines, baseline)),
            });
        }
    }

    /// Entries without numbers.
    #[must_use]
    pub fn failures(&self) -> Vec<&Entry> {
        self.entries.iter().filter(|entry| entry.failed.is_some()).collect()
    }

    /// Writes `report.json` and `report.html` into `dir`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        write("report.json", serde_json::to_string_pretty(&self.entries)?)?;
        write("report.html", page::render(self)?)
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// A fan-out of copies whose receivers are one process.
pub const UDS_COPY_ONE: &str = "uds-copy-one";
/// Baselines with entries of their own; others stand in the conditions of these.
const LISTED: [&str; 13] = [
    "uds-copy",
    "uds-pingpong",
    "http-loopback",
    "native",
    "redis",
    "over-redis",
    "tcp",
    "tls",
    "runc",
    "rust",
    "sealed",
    "core-module",
    "local",
];

/// What took part besides, for the conditions of an entry with `baseline`.
fn beside(ours: &Measured, baselines: &[Measured], baseline: &Measured) -> String {
    let mut text = String::new();
    let find = |name: &str| baselines.iter().find(|one| one.name == name);
    if baseline.name == "uds-copy" {
        text.push_str("; uds-copy receives into memory fresh for each request, as ours does");
        for (name, how) in [
            ("uds-copy-warm", "into a warm buffer"),
            (UDS_COPY_ONE, "to one server process, one copy after the other,"),
        ] {
            let Some(other) = find(name) else { continue };
            let ratio = |part: fn(&Measured) -> &Rounds| {
                Ratio::of(part(other), part(ours)).map_or(f64::NAN, |ratio| ratio.value)
            };
            text.push_str(&format!(
                ", {how} the ratios are {:.2} (delivery) and {:.2} (call)",
                ratio(|one| &one.delivery),
                ratio(|one| &one.call)
            ));
        }
    }
    if baseline.name == "http-loopback"
        && let Some(guests) = find("http-wasmedge")
    {
        let p50 = |part: &Rounds| Distribution::of(&part.all()).map_or(f64::NAN, |one| one.p50);
        let (delivery, call) = (p50(&guests.delivery), p50(&guests.call));
        text.push_str(&format!(
            "; HTTP between two WasmEdge guests: {delivery:.1} us (delivery), {call:.1} us (call)"
        ));
    }
    if let Some(limit) = find("memcpy").and_then(|one| Distribution::of(&one.delivery.all())) {
        text.push_str(&format!("; one memcpy of it into fresh memory: {:.1} us", limit.p50));
    }
    text
}

#[cfg(test)]
mod tests;
