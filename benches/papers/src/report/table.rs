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
    let others = exhibit.published.iter().map(|number| &*number.case);
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

/// What a side's number is, behind its name: numbers of two kinds do not compare.
pub fn kind(side: &str) -> &str {
    const WAYS: [&str; 2] = ["in turn", "at a time"];
    let way = side.rsplit_once(", ").map(|(_, way)| way).filter(|way| WAYS.contains(way));
    way.or_else(|| side.split_once(": ").map(|(_, kind)| kind)).unwrap_or_default()
}

/// `2.00× first side, p = 0.03`; empty for the first side of its kind.
fn compared(exhibit: &Exhibit, case: &str, side: &str) -> String {
    let sides = exhibit.sides();
    let first = || sides.iter().copied().find(|first| kind(first) == kind(side));
    let Some(first) = exhibit.tested.as_deref().or_else(first) else { return String::new() };
    if first == side {
        return String::new();
    }
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
    writeln!(text, "  {:<20} {:<48} {header}  CoV %  {}", "case", "side", exhibit.unit())?;
    for Row { case, side, cells } in rows(exhibit) {
        let mut line = format!("  {case:<20} {side:<48}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhibit::Form;
    use crate::series::Series;

    #[test]
    fn numbers_of_two_kinds_are_in_no_ratio() {
        let of = |side: &str, value: f64| Series::new(side, "10", "ms", vec![value]);
        let series = vec![
            of("ours, at a time", 1.0),
            of("native, at a time", 2.0),
            of("ours, in turn", 4.0),
            of("native, in turn", 6.0),
        ];
        let exhibit = Exhibit::new("id", Form::Table, "", series);
        let compared = |side| compared(&exhibit, "10", side);
        assert_eq!(compared("native, at a time"), "2.00× ours, at a time");
        assert_eq!(compared("ours, in turn"), "");
        assert_eq!(compared("native, in turn"), "1.50× ours, in turn");
        assert_eq!(kind("CWASI local: call"), "call");
        assert_eq!(kind("CWASI networked (TLS) in WasmEdge, at a time"), "at a time");
        assert_eq!(kind("CWASI wasmtime, one workflow"), "");
    }
}
