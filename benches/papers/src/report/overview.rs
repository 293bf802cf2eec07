//! Every table and figure in one table of Markdown: who was measured beside whom, their numbers and ours, N and p.

use std::fmt::Write as _;

use anyhow::Result;
use cwasi_bench::report::terminal::digits;

use super::Report;
use super::table::kind;
use crate::contents::{CONTENTS, Entry, Status};
use crate::exhibit::{Exhibit, Paper};
use crate::series::{mann_whitney, number};

/// How the names of our sides begin.
const OURS: &str = "CWASI";
/// Where there is nothing to say.
const NONE: &str = "–";

/// The table: of a figure with many cases the one with the largest number, or else the first.
///
/// # Errors
/// Never in memory.
pub fn table(report: &Report) -> Result<String> {
    let mut text =
        "| table or figure | of | case | theirs | here, medians | N | p | `make papers` |\n\
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
    let Some(case) = chosen(exhibit) else { return Ok(None) };
    let theirs = exhibit.published.iter().filter(|number| number.case == case);
    let theirs: Vec<_> =
        theirs.map(|number| format!("{} {}", number.side, digits(number.value))).collect();
    let theirs = if theirs.is_empty() { NONE.to_owned() } else { theirs.join("; ") };
    let (ours, counts) = medians(exhibit, case);
    let p = significance(exhibit, case).unwrap_or_else(|| NONE.to_owned());
    let unit = exhibit.unit();
    Ok(Some(format!(
        "{head} | {case} | {theirs} | {ours} {unit} | {counts} | {p} | `EXHIBIT={}` |",
        entry.id
    )))
}

/// The case that the table shows: with numbers of the paper, if there is one.
fn chosen(exhibit: &Exhibit) -> Option<&str> {
    let cases = exhibit.cases();
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

/// The median of each side, and the least and most samples.
fn medians(exhibit: &Exhibit, case: &str) -> (String, String) {
    let (mut medians, mut counts) = (Vec::new(), Vec::new());
    for side in exhibit.sides() {
        let Some(summary) = exhibit.of(side, case).and_then(|series| series.summary()) else {
            continue;
        };
        let bound = if exhibit.is_bound(side) { "≥ " } else { "" };
        medians.push(format!("{side} {bound}{}", digits(summary.p50)));
        counts.push(summary.count);
    }
    let (least, most) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
    let counts = if least == most { least.to_string() } else { format!("{least} to {most}") };
    (medians.join("; "), counts)
}

/// p of the Mann-Whitney U test of our first side and of the first one of its kind that is not ours.
fn significance(exhibit: &Exhibit, case: &str) -> Option<String> {
    let sides = exhibit.sides();
    let ours = sides.iter().find(|side| side.starts_with(OURS))?;
    let other = sides.iter().find(|side| !side.starts_with(OURS) && kind(side) == kind(ours))?;
    let p = mann_whitney(&exhibit.of(ours, case)?.samples, &exhibit.of(other, case)?.samples)?;
    Some(if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.2}") })
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
                        CWASI executor 2.00; native proxy in runc 8.00 ms | 3 | 0.08 | `EXHIBIT=wow-figure-4` |";
        assert!(table.contains(expected), "{table}");
        assert!(table.contains("not measured: There is no Raspberry Pi here."), "{table}");
        assert!(!table.contains("EXHIBIT=wow-figure-5"));
    }

    #[test]
    fn p_is_of_two_sides_whose_numbers_compare() {
        let of = |side: &str, samples: &[f64]| Series::new(side, "10", "ms", samples.to_vec());
        let ours = of("CWASI local, at a time", &[1.0, 2.0, 3.0]);
        let in_turn = of("WasmEdge HTTP (own), in turn", &[1.0, 2.0, 3.0]);
        let exhibit = |series| Exhibit::new("cwasi-figure-8a", Form::Lines, "", series);
        let alone = exhibit(vec![ours.clone(), in_turn.clone()]);
        assert_eq!(significance(&alone, "10"), None);
        let native = of("hyper in runc, at a time", &[7.0, 8.0, 9.0]);
        let both = exhibit(vec![ours, in_turn, native]);
        assert_eq!(significance(&both, "10").as_deref(), Some("0.08"));
    }
}
