//! Every table and figure in one table of Markdown: their numbers and ours beside the side that the paper compares with,
//! their spread, N and p.

use std::fmt::Write as _;

use anyhow::Result;
use cwasi_bench::report::terminal::digits;

use crate::claims::CLAIMS;
use crate::contents::{CONTENTS, Entry, Status};
use crate::exhibit::{Exhibit, Paper};
use crate::report::{Report, kind};
use crate::series::{Series, mann_whitney, number};

/// How the names of our sides begin.
const OURS: &str = "CWASI";
/// Where there is nothing to say.
const NONE: &str = "–";

/// The table: of a figure with many cases the one with the largest number, or else the first.
///
/// # Errors
/// Never in memory.
pub fn table(report: &Report) -> Result<String> {
    let mut text = "| table or figure | of | case | theirs | here: median (SD, CoV) | N | p | `make papers` |\n\
                    |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for paper in Paper::ALL {
        for entry in CONTENTS.iter().filter(|entry| entry.paper == paper) {
            if let Some(row) = row(report, entry)? {
                writeln!(text, "{row}")?;
            }
        }
    }
    Ok(text)
}

/// `None` for what this run did not measure, though it could.
fn row(report: &Report, entry: &Entry) -> Result<Option<String>> {
    let paper = serde_json::to_value(entry.paper)?;
    let head =
        format!("| {}: {} | {}", paper.as_str().unwrap_or_default(), entry.name, entry.about);
    if let Status::Absent(reason) = entry.status {
        return Ok(Some(format!("{head} | {NONE} | {NONE} | not measured: {reason} | | | |")));
    }
    let Some(exhibit) = report.exhibit(entry.id) else { return Ok(None) };
    let sides = compared(exhibit);
    let Some(case) = chosen(exhibit, &sides) else { return Ok(None) };
    let theirs = exhibit.published.iter().filter(|number| number.case == case);
    let theirs: Vec<_> =
        theirs.map(|number| format!("{} {}", number.side, digits(number.value))).collect();
    let theirs = if theirs.is_empty() { NONE.to_owned() } else { theirs.join("; ") };
    let series: Vec<&Series> = sides.iter().filter_map(|side| exhibit.of(side, case)).collect();
    let numbers: Vec<_> = series.iter().filter_map(|series| spread(exhibit, series)).collect();
    let unit = exhibit.unit();
    Ok(Some(format!(
        "{head} | {case} | {theirs} | {} {unit} | {} | {} | `EXHIBIT={}` |",
        numbers.join("; "),
        counts(&series),
        significance(&series),
        entry.id
    )))
}

/// The sides of the claims about an exhibit, ours first; without a claim the first of ours and the first other one.
fn compared(exhibit: &Exhibit) -> Vec<&str> {
    let is_claimed = |side: &&str| {
        let mut claims = CLAIMS.iter().filter(|claim| claim.exhibit == exhibit.id);
        claims.any(|claim| claim.ours == *side || claim.other == *side)
    };
    let mut compared = Vec::new();
    for ours in [true, false] {
        let sides = exhibit.sides().into_iter();
        let sides: Vec<&str> = sides.filter(|side| side.starts_with(OURS) == ours).collect();
        let claimed: Vec<&str> = sides.iter().copied().filter(is_claimed).collect();
        let first = sides.into_iter().take(1).collect();
        compared.extend(if claimed.is_empty() { first } else { claimed });
    }
    compared
}

/// The case that the table shows: one that all `sides` have, if there is one, and with numbers of the paper, if there is
/// one.
fn chosen<'a>(exhibit: &'a Exhibit, sides: &[&str]) -> Option<&'a str> {
    let mut cases = exhibit.cases();
    let have_all = |case: &&str| sides.iter().all(|side| exhibit.of(side, case).is_some());
    if cases.iter().any(have_all) {
        cases.retain(have_all);
    }
    let is_published = |case: &&str| exhibit.published.iter().any(|number| number.case == *case);
    let published: Vec<&str> = cases.iter().copied().filter(is_published).collect();
    let from = if published.is_empty() { cases } else { published };
    let largest = from
        .iter()
        .copied()
        .filter_map(|case| Some((number(case)?, case)))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    largest.map(|(_, case)| case).or_else(|| from.first().copied())
}

/// A side with its median, its standard deviation and its coefficient of variation; one sample has only itself.
fn spread(exhibit: &Exhibit, series: &Series) -> Option<String> {
    let summary = series.summary()?;
    let side = &series.side;
    let bound = if exhibit.is_bound(side) { "≥ " } else { "" };
    let median = digits(summary.p50);
    if summary.count == 1 {
        return Some(format!("{side} {bound}{median}"));
    }
    let (deviation, variation) = (digits(summary.deviation), 100.0 * summary.variation());
    Some(format!("{side} {bound}{median} ({deviation}, {variation:.0} %)"))
}

/// The least and the most samples of a side.
fn counts(series: &[&Series]) -> String {
    let counts = series.iter().map(|series| series.samples.len());
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// p of the Mann-Whitney U test of each side that is not ours and the first one of ours whose numbers are of its kind.
fn significance(series: &[&Series]) -> String {
    let (ours, others): (Vec<&Series>, Vec<&Series>) =
        series.iter().partition(|series| series.side.starts_with(OURS));
    let p = |other: &Series| {
        let ours = ours.iter().find(|ours| kind(&ours.side) == kind(&other.side))?;
        let p = mann_whitney(&ours.samples, &other.samples)?;
        Some(if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") })
    };
    let found: Vec<String> =
        others.into_iter().map(|other| p(other).unwrap_or_else(none)).collect();
    if found.is_empty() { none() } else { found.join("; ") }
}

fn none() -> String {
    NONE.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhibit::Form;
    use crate::series::Series;
    use cwasi_bench::machine::Machine;

    #[test]
    fn a_row_has_the_papers_case_all_sides_and_their_samples() {
        let of = |side: &str, case: &str, first: f64| {
            Series::new(side, case, "ms", vec![first, first + 1.0, first + 2.0])
        };
        let series = vec![
            of("CWASI executor", "15", 2.0),
            of("CWASI executor", "1", 1.0),
            of("native proxy in runc", "1", 7.0),
        ];
        let mut report = Report::new(Machine::read(), "smoke", Vec::new());
        let exhibit = Exhibit::new("wow-figure-4", Form::Lines, "", series);
        report.exhibits.push(exhibit.published(&[("Docker", "1", 869.0)]));
        let table = table(&report).unwrap();
        let expected = "| wow: Figure 4b | 1 to 15 cold starts at a time | 1 | Docker 869 | \
                        CWASI executor 2.00 (1.00, 50 %); native proxy in runc 8.00 (1.00, 12 %) ms | 3 | 0.081 | \
                        `EXHIBIT=wow-figure-4` |";
        assert!(table.contains(expected), "{table}");
        assert!(table.contains("not measured: There is no Raspberry Pi here."), "{table}");
        assert!(!table.contains("EXHIBIT=wow-figure-5"));
    }

    #[test]
    fn p_is_of_two_sides_whose_numbers_compare() {
        let of = |side: &str, samples: &[f64]| Series::new(side, "10", "ms", samples.to_vec());
        let ours = of("CWASI local, at a time", &[1.0, 2.0, 3.0]);
        let in_turn = of("WasmEdge HTTP (own), in turn", &[1.0, 2.0, 3.0]);
        let native = of("hyper in runc, at a time", &[7.0, 8.0, 9.0]);
        assert_eq!(significance(&[&ours, &in_turn, &native]), "–; 0.081");
        assert_eq!(significance(&[&ours]), "–");
    }
}
