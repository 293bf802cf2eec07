//! What the papers claim, as ratios, and what a run says of each: the table of `docs/papers.md`.

use std::fmt::Write as _;

use anyhow::Result;
use cwasi_bench::report::terminal::digits;

use crate::exhibit::Exhibit;
use crate::openwhisk::{EXECUTOR, PROXY};
use crate::report::Report;
use crate::series::{Summary, number};

/// A claim: how much `other` is, by `ours`.
pub struct Claim {
    pub claim: &'static str,
    /// The paper's ratio, or how many of its cases.
    pub theirs: &'static str,
    /// The entry that has the medians of both sides.
    pub exhibit: &'static str,
    pub case: Case,
    pub other: &'static str,
    pub ours: &'static str,
}

/// Which of an exhibit's cases.
#[derive(Clone, Copy)]
pub enum Case {
    Named(&'static str),
    /// The one with the smallest number.
    Least,
    /// The one with the largest number.
    Most,
    /// In how many of all cases the mean of `ours` is lower.
    Faster,
    /// In how many of all cases the coefficient of variation of `ours` is lower.
    Steadier,
}

const LOCAL_CALL: &str = "CWASI local: call";
const LOCAL_IN_TURN: &str = "CWASI local, in turn";
const NATIVE_IN_TURN: &str = "hyper in runc, in turn";
/// Parts of the names of sides that a run may lack.
const OPTIONAL: [&str; 2] = ["in WasmEdge", "(wasmedge_http_req)"];
/// Of the operator paper.
const NATIVE: &str = "native in runc";
const STANDARD_GO: &str = "CWASI, standard Go";

const fn claim(
    claim: &'static str,
    theirs: &'static str,
    (exhibit, case): (&'static str, Case),
    other: &'static str,
    ours: &'static str,
) -> Claim {
    Claim { claim, theirs, exhibit, case, other, ours }
}

/// A claim of the thesis about a mixed load, by the requests that compute.
const fn mix(text: &'static str, theirs: &'static str, exhibit: &'static str) -> Claim {
    let case = (exhibit, Case::Named("means of all"));
    claim(text, theirs, case, "native proxy in runc: prime", "CWASI executor: prime")
}

/// In the papers' order. A ratio above 1: ours is faster, or uses less; but for throughput, where `other` is ours.
pub const CLAIMS: [Claim; 45] = {
    use Case::{Faster, Least, Most, Named, Steadier};
    let sequence = "cwasi-figure-7a";
    [
        claim(
            "CWASI: a call of 2 MB, WasmEdge’s HTTP by CWASI",
            "9.4",
            (sequence, Least),
            "WasmEdge HTTP (own): call",
            LOCAL_CALL,
        ),
        claim(
            "the same, native HTTP (OpenFaaS) by CWASI",
            "4.9",
            (sequence, Least),
            "hyper in runc: call",
            LOCAL_CALL,
        ),
        claim(
            "CWASI: the largest payload, WasmEdge’s HTTP by CWASI",
            "30.9",
            (sequence, Most),
            "WasmEdge HTTP (own): call",
            LOCAL_CALL,
        ),
        claim(
            "the same, native HTTP (OpenFaaS) by CWASI",
            "2.6",
            (sequence, Most),
            "hyper in runc: call",
            LOCAL_CALL,
        ),
        claim(
            "CWASI: throughput of the narrowest fan-out by native HTTP’s (OpenFaaS), in turn",
            "3.4",
            ("cwasi-figure-8b", Least),
            LOCAL_IN_TURN,
            NATIVE_IN_TURN,
        ),
        claim(
            "the same, by WasmEdge’s HTTP, in turn",
            "46.5",
            ("cwasi-figure-8b", Least),
            LOCAL_IN_TURN,
            "WasmEdge HTTP (own), in turn",
        ),
        claim(
            "CWASI: throughput of the narrowest fan-in by native HTTP’s (OpenFaaS), in turn",
            "2.3",
            ("cwasi-figure-9b", Least),
            LOCAL_IN_TURN,
            NATIVE_IN_TURN,
        ),
        claim(
            "the same, by WasmEdge’s HTTP, in turn",
            "34.5",
            ("cwasi-figure-9b", Least),
            LOCAL_IN_TURN,
            "WasmEdge HTTP (own), in turn",
        ),
        claim(
            "CWASI: memory of a sequence of the largest payload, WasmEdge’s HTTP by CWASI (up to 30 % less)",
            "1.43",
            ("cwasi-figure-7c-ram", Most),
            "WasmEdge HTTP (own)",
            "CWASI local",
        ),
        claim(
            "the same, native HTTP (OpenFaaS) by CWASI (up to 15 % less)",
            "1.18",
            ("cwasi-figure-7c-ram", Most),
            "hyper in runc",
            "CWASI local",
        ),
        claim(
            "CWASI: latency of the widest fan-out, WasmEdge’s HTTP by CWASI, in turn (up to 95 % less)",
            "20",
            ("cwasi-figure-8a", Most),
            "WasmEdge HTTP (own), in turn",
            LOCAL_IN_TURN,
        ),
        claim(
            "CWASI: throughput of the widest fan-in by WasmEdge’s HTTP, in turn (up to 30 times)",
            "30",
            ("cwasi-figure-9b", Most),
            LOCAL_IN_TURN,
            "WasmEdge HTTP (own), in turn",
        ),
        claim(
            "CWASI in WasmEdge: a call of 2 MB, WasmEdge’s HTTP with the artifact’s client by CWASI",
            "9.4",
            (sequence, Least),
            "WasmEdge HTTP (wasmedge_http_req): call",
            "CWASI local in WasmEdge: call",
        ),
        claim(
            "the same, the largest payload",
            "30.9",
            (sequence, Most),
            "WasmEdge HTTP (wasmedge_http_req): call",
            "CWASI local in WasmEdge: call",
        ),
        claim(
            "the same, throughput of the narrowest fan-out, in turn",
            "46.5",
            ("cwasi-figure-8b", Least),
            "CWASI local in WasmEdge, in turn",
            "WasmEdge HTTP (wasmedge_http_req), in turn",
        ),
        claim(
            "the same, throughput of the narrowest fan-in, in turn",
            "34.5",
            ("cwasi-figure-9b", Least),
            "CWASI local in WasmEdge, in turn",
            "WasmEdge HTTP (wasmedge_http_req), in turn",
        ),
        claim(
            "the same, memory of a sequence of the largest payload (up to 30 % less)",
            "1.43",
            ("cwasi-figure-7c-ram", Most),
            "WasmEdge HTTP (wasmedge_http_req)",
            "CWASI local in WasmEdge",
        ),
        claim(
            "WOW: most cold starts at a time, native proxy (Docker, on average) by Wasm",
            "16.7",
            ("wow-figure-4", Most),
            PROXY,
            EXECUTOR,
        ),
        claim(
            "WOW: throughput of a mixed load, Wasm by native",
            "2.2",
            ("wow-table-1", Named("requests")),
            EXECUTOR,
            PROXY,
        ),
        claim(
            "WOW: throughput of an I/O-bound load, Wasm by native",
            "> 2.7",
            ("wow-io", Named("requests")),
            EXECUTOR,
            PROXY,
        ),
        claim(
            "WOW: throughput of a CPU-bound load, Wasm by native",
            "0.57",
            ("wow-cpu", Named("requests")),
            EXECUTOR,
            PROXY,
        ),
        claim(
            "WOW: throughput of a sieve, AssemblyScript by node.js",
            "> 3.0",
            ("wow-node", Least),
            EXECUTOR,
            "node.js in runc",
        ),
        claim(
            "WOW: memory of a warm function, native by Wasm",
            "3.5",
            ("wow-table-2", Named("PSS of all processes")),
            PROXY,
            EXECUTOR,
        ),
        claim(
            "thesis: cold starts, Docker by Wasm",
            "135.31",
            ("thesis-cold-starts", Named("means of all")),
            PROXY,
            EXECUTOR,
        ),
        claim(
            "thesis: no load, Docker by Wasm",
            "1.14",
            ("thesis-no-load", Named("means of all")),
            PROXY,
            EXECUTOR,
        ),
        claim(
            "thesis: hashing, Docker by Wasm",
            "8.49",
            ("thesis-hashing", Named("means of all")),
            PROXY,
            EXECUTOR,
        ),
        mix("thesis: mixed load 10/90, Docker by Wasm", "2.30", "thesis-mix-10"),
        mix("thesis: mixed load 25/75, Docker by Wasm", "2.27", "thesis-mix-25"),
        mix("thesis: mixed load 50/50, Docker by Wasm", "2.38", "thesis-mix-50"),
        mix("thesis: mixed load 75/25, Docker by Wasm", "2.13", "thesis-mix-75"),
        mix("thesis: mixed load 90/10, Docker by Wasm", "2.15", "thesis-mix-90"),
        claim(
            "thesis: capacity, Wasm by Docker",
            "10.84",
            ("thesis-capacity", Named("at a time")),
            EXECUTOR,
            PROXY,
        ),
        claim(
            "thesis: memory at capacity, Docker by Wasm",
            "4.8",
            ("thesis-capacity-ram", Most),
            PROXY,
            EXECUTOR,
        ),
        claim(
            "operator paper: serial aes, native by Wasm",
            "0.86",
            ("operator-serial", Named("aes")),
            NATIVE,
            "CWASI",
        ),
        claim(
            "the same, standard Go in place of TinyGo",
            "0.86",
            ("operator-serial", Named("aes")),
            NATIVE,
            STANDARD_GO,
        ),
        claim(
            "operator paper: serial n-body, native by Wasm",
            "0.98",
            ("operator-serial", Named("n-body")),
            NATIVE,
            "CWASI",
        ),
        claim(
            "operator paper: functions whose serial mean is lower than the native one’s",
            "3 of 9",
            ("operator-serial", Faster),
            NATIVE,
            "CWASI",
        ),
        claim(
            "operator paper: functions whose serial CoV is lower",
            "9 of 9",
            ("operator-serial", Steadier),
            NATIVE,
            "CWASI",
        ),
        claim(
            "operator paper: instantiation of n-body, native by Wasm",
            "2.0",
            ("operator-starts", Named("n-body")),
            NATIVE,
            "CWASI",
        ),
        claim(
            "operator paper: concurrent aes, native by Wasm",
            "0.85",
            ("operator-concurrent", Named("aes")),
            NATIVE,
            "CWASI",
        ),
        claim(
            "the same, standard Go in place of TinyGo",
            "0.85",
            ("operator-concurrent", Named("aes")),
            NATIVE,
            STANDARD_GO,
        ),
        claim(
            "operator paper: functions whose concurrent mean is lower",
            "4 of 9",
            ("operator-concurrent", Faster),
            NATIVE,
            "CWASI",
        ),
        claim(
            "operator paper: image of aes, native by Wasm",
            "66.52",
            ("operator-images", Named("aes")),
            NATIVE,
            "CWASI",
        ),
        claim(
            "the same, standard Go in place of TinyGo",
            "66.52",
            ("operator-images", Named("aes")),
            NATIVE,
            STANDARD_GO,
        ),
        claim(
            "operator paper: image of n-body, native by Wasm",
            "90.69",
            ("operator-images", Named("n-body")),
            NATIVE,
            "CWASI",
        ),
    ]
};

/// What a run says of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ratio {
    Exact(f64),
    AtLeast(f64),
    AtMost(f64),
    /// Both sides reached the end of the run.
    Open,
    /// Cases of which it is true, and all.
    Cases(usize, usize),
}

impl Ratio {
    fn of(other: (f64, bool), ours: (f64, bool)) -> Self {
        let ratio = other.0 / ours.0;
        match (other.1, ours.1) {
            (false, false) => Self::Exact(ratio),
            (true, false) => Self::AtLeast(ratio),
            (false, true) => Self::AtMost(ratio),
            (true, true) => Self::Open,
        }
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(ratio) => formatter.write_str(&digits(*ratio)),
            Self::AtLeast(ratio) => write!(formatter, "≥ {}", digits(*ratio)),
            Self::AtMost(ratio) => write!(formatter, "≤ {}", digits(*ratio)),
            Self::Open => formatter.write_str("neither side failed"),
            Self::Cases(some, all) => write!(formatter, "{some} of {all}"),
        }
    }
}

impl Claim {
    /// Our ratio of medians; `None` without the exhibit, an error without one of the sides.
    fn measured(&self, report: &Report) -> Result<Option<Ratio>, String> {
        let Some(exhibit) = report.exhibit(self.exhibit) else { return Ok(None) };
        let of = |case: &&str| {
            exhibit.of(self.other, case).is_some() && exhibit.of(self.ours, case).is_some()
        };
        let mut numbers: Vec<_> = exhibit
            .cases()
            .into_iter()
            .filter(of)
            .filter_map(|case| Some((number(case)?, case)))
            .collect();
        numbers.sort_by(|one, other| one.0.total_cmp(&other.0));
        let case = match self.case {
            Case::Named(case) => Some(case),
            Case::Least => numbers.first().map(|(_, case)| *case),
            Case::Most => numbers.last().map(|(_, case)| *case),
            Case::Faster => return Ok(self.cases(exhibit, |summary| summary.mean)),
            Case::Steadier => return Ok(self.cases(exhibit, Summary::variation)),
        };
        let median = |side: &str| {
            let median = exhibit.of(side, case?)?.summary()?.p50;
            Some((median, exhibit.is_bound(side)))
        };
        match (median(self.other), median(self.ours)) {
            (Some(other), Some(ours)) => Ok(Some(Ratio::of(other, ours))),
            _ if self.is_optional() => Ok(None),
            _ => Err(format!("{}: no {} or {}", self.exhibit, self.other, self.ours)),
        }
    }

    /// True if a run may lack one of the sides: an engine or guests that are built only for the report.
    fn is_optional(&self) -> bool {
        let is_optional = |side: &str| OPTIONAL.iter().any(|part| side.contains(part));
        is_optional(self.other) || is_optional(self.ours)
    }

    /// In how many cases that both sides have the number of `ours` is lower.
    fn cases(&self, exhibit: &Exhibit, number: impl Fn(&Summary) -> f64) -> Option<Ratio> {
        let of = |side: &str, case: &str| {
            exhibit.of(side, case)?.summary().map(|summary| number(&summary))
        };
        let both = |case: &&str| Some((of(self.other, case)?, of(self.ours, case)?));
        let both: Vec<(f64, f64)> = exhibit.cases().iter().filter_map(both).collect();
        let lower = both.iter().filter(|(other, ours)| ours < other).count();
        Some(Ratio::Cases(lower, both.len()))
    }
}

/// Claims whose sides an exhibit lacks.
#[must_use]
pub fn problems(report: &Report) -> Vec<String> {
    CLAIMS.iter().filter_map(|claim| claim.measured(report).err()).collect()
}

/// A table in Markdown, of the claims that the run has numbers for.
///
/// # Errors
/// Never in memory.
pub fn table(report: &Report) -> Result<String> {
    let mut text = "| claim | theirs | here | `make papers` |\n|---|---|---|---|\n".to_owned();
    for claim in &CLAIMS {
        let Ok(Some(ours)) = claim.measured(report) else { continue };
        writeln!(
            text,
            "| {} | {} | {ours} | `EXHIBIT={}` |",
            claim.claim, claim.theirs, claim.exhibit
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::CONTENTS;
    use crate::exhibit::Form;
    use crate::report::kind;
    use crate::series::Series;
    use cwasi_bench::machine::Machine;

    #[test]
    fn every_claim_is_about_something_measured() {
        for claim in &CLAIMS {
            let entry = CONTENTS.iter().find(|entry| entry.id == claim.exhibit);
            assert!(entry.is_some_and(crate::contents::Entry::is_measured), "{}", claim.exhibit);
        }
    }

    #[test]
    fn a_claims_ratio_is_that_of_the_medians_of_its_case() {
        let mut report = Report::new(Machine::read(), "smoke", Vec::new());
        assert!(problems(&report).is_empty());
        let of = |side: &str, case: &str, sample: f64| Series::new(side, case, "ms", vec![sample]);
        let series = vec![
            of(EXECUTOR, "15", 4.0),
            of(EXECUTOR, "2", 5.0),
            of(PROXY, "2", 5.0),
            of(PROXY, "15", 6.0),
            of(PROXY, "20", 9.0),
        ];
        report.exhibits.push(Exhibit::new("wow-figure-4", Form::Lines, "", series));
        assert!(table(&report).unwrap().contains("| 16.7 | 1.50 | `EXHIBIT=wow-figure-4` |"));
        report.exhibits[0].series.truncate(2);
        assert_eq!(problems(&report).len(), 1);
    }

    #[test]
    fn a_claim_compares_numbers_of_one_kind() {
        for claim in &CLAIMS {
            assert_eq!(kind(claim.other), kind(claim.ours), "{}", claim.claim);
        }
    }

    #[test]
    fn a_claim_about_a_side_that_a_run_may_lack_needs_no_numbers() {
        let mut report = Report::new(Machine::read(), "smoke", Vec::new());
        let of = |side: &str| Series::new(side, "2 MB", "ms", vec![2.0]);
        let sides =
            ["WasmEdge HTTP (own): call", "hyper in runc: call", "CWASI local: call"].map(of);
        report.exhibits.push(Exhibit::new("cwasi-figure-7a", Form::Lines, "", sides.to_vec()));
        assert_eq!(problems(&report), Vec::<String>::new());
        assert!(!table(&report).unwrap().contains("CWASI in WasmEdge"));
        let more = ["WasmEdge HTTP (wasmedge_http_req): call", "CWASI local in WasmEdge: call"];
        report.exhibits[0].series.extend(more.map(of));
        assert!(table(&report).unwrap().contains("artifact’s client by CWASI | 9.4 | 1.00 |"));
    }

    #[test]
    fn a_bound_is_no_ratio() {
        let mut report = Report::new(Machine::read(), "smoke", Vec::new());
        let of = |side: &str, count: f64| Series::new(side, "at a time", "", vec![count]);
        let series = vec![of(EXECUTOR, 800.0), of(PROXY, 100.0)];
        let exhibit = Exhibit::new("thesis-capacity", Form::Table, "", series);
        let both = [EXECUTOR.to_owned(), PROXY.to_owned()];
        for (bounded, text) in [
            (&both[..0], "| 8.00 |"),
            (&both[..1], "| ≥ 8.00 |"),
            (&both[1..], "| ≤ 8.00 |"),
            (&both[..], "| neither side failed |"),
        ] {
            report.exhibits = vec![exhibit.clone().bounded(bounded)];
            assert!(table(&report).unwrap().contains(text), "{text}");
        }
    }

    #[test]
    fn the_page_has_every_claim_with_the_papers_number() {
        let page = include_str!("../../../docs/papers.md");
        for claim in &CLAIMS {
            let begins = format!("| {} | {} | ", claim.claim, claim.theirs);
            let ends = format!(" | `EXHIBIT={}` |", claim.exhibit);
            let is_row = |line: &str| line.starts_with(&begins) && line.ends_with(&ends);
            assert!(page.lines().any(is_row), "{begins}{ends}");
        }
    }
}
