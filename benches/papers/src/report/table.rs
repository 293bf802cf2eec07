//! The table of an exhibit, as text and as rows for the page.

use std::fmt::Write as _;

use anyhow::Result;
use cwasi_bench::report::terminal::digits;

use crate::exhibit::Exhibit;
use crate::series::{Summary, mann_whitney};

/// One line of a table.
pub struct Row {
    pub case: String,
    pub side: String,
    pub cells: Cells,
}

/// The numbers of a line.
pub enum Cells {
    Measured {
        summary: Summary,
        /// How the median compares with that of the first side, and p of the Mann-Whitney U test.
        compared: String,
    },
    /// The paper's.
    Published(f64),
}

/// The lines, case by case: the measured sides, then the paper's.
#[must_use]
pub fn rows(exhibit: &Exhibit) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut cases = exhibit.cases();
    let others = exhibit.published.iter().map(|number| number.case);
    let others: Vec<_> = others.filter(|case| !cases.contains(case)).collect();
    for case in others {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    for case in cases {
        for series in exhibit.series.iter().filter(|series| series.case == case) {
            let Some(summary) = series.summary() else { continue };
            let compared = compared(exhibit, case, &series.side);
            let cells = Cells::Measured { summary, compared };
            let bound = if exhibit.is_bound(&series.side) { ", at least" } else { "" };
            let side = format!("{}{bound}", series.side);
            rows.push(Row { case: case.to_owned(), side, cells });
        }
        for number in exhibit.published.iter().filter(|number| number.case == case) {
            let side = format!("(paper) {}", number.side);
            rows.push(Row { case: case.to_owned(), side, cells: Cells::Published(number.value) });
        }
    }
    rows
}

/// `2.00× first side, p = 0.03`; empty for the first side itself.
fn compared(exhibit: &Exhibit, case: &str, side: &str) -> String {
    let first = exhibit.tested.or_else(|| exhibit.sides().first().copied());
    let Some(first) = first.filter(|first| *first != side) else { return String::new() };
    if exhibit.is_bound(first) || exhibit.is_bound(side) {
        return String::new();
    }
    let (Some(ours), Some(theirs)) = (exhibit.of(first, case), exhibit.of(side, case)) else {
        return String::new();
    };
    let (Some(own), Some(other)) = (ours.summary(), theirs.summary()) else { return String::new() };
    let ratio = other.p50 / own.p50;
    if !ratio.is_finite() {
        return String::new();
    }
    let mut text = format!("{ratio:.2}× {first}");
    if exhibit.tested.is_some()
        && let Some(p) = mann_whitney(&ours.samples, &theirs.samples)
    {
        let p = if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.2}") };
        text = format!("{text}, {p}");
    }
    text
}

/// For the terminal.
pub fn text(exhibit: &Exhibit) -> Result<String> {
    let mut text = String::new();
    let header =
        ["n", "p25", "p50", "p75", "mean", "SD"].map(|name| format!("{name:>8}")).join(" ");
    writeln!(text, "  {:<14} {:<24} {header}  CoV %  {}", "case", "side", exhibit.unit())?;
    for Row { case, side, cells } in rows(exhibit) {
        let mut line = format!("  {case:<14} {side:<24}");
        match cells {
            Cells::Measured { summary, compared } => {
                let Summary { count, p25, p50, p75, mean, deviation, .. } = summary;
                write!(line, " {count:>8}")?;
                for value in [p25, p50, p75, mean, deviation] {
                    write!(line, " {:>8}", digits(value))?;
                }
                write!(line, " {:>6.1}  {compared}", 100.0 * summary.variation())?;
            }
            Cells::Published(value) => write!(line, "{:>45}", digits(value))?,
        }
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(text)
}
