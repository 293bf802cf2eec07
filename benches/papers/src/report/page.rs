//! The report as one page, with its plots inside.

use std::fmt::Write as _;

use anyhow::Result;
use cwasi_bench::report::page::{END, begin, escaped};
use cwasi_bench::report::terminal::digits;

use super::table::{Cells, rows};
use super::{Report, plot};
use crate::contents::{CONTENTS, Entry, Status};
use crate::exhibit::{Exhibit, Form, Paper};
use crate::series::Summary;

const TITLE: &str = "The papers’ tables and figures";
const HEADING: &str = "The papers’ tables and figures, with CWASI and what one would otherwise run";

/// The page.
pub fn page(report: &Report) -> Result<String> {
    let mut page = begin(TITLE, HEADING);
    writeln!(page, "<p>{} run. {}</p>", report.effort, escaped(&report.machine.sentence()))?;
    if !report.machine.was_quiet() {
        page +=
            "<p class=\"warning\">Something else used this machine: the figures are noise.</p>\n";
    }
    let versions = report.versions.iter();
    let versions: Vec<_> = versions.map(|(name, text)| format!("{name} {text}")).collect();
    writeln!(page, "<p>{}</p>", escaped(&versions.join(", ")))?;
    page += "<p>Samples: <a href=\"samples.csv\">samples.csv</a>, <a href=\"report.json\">report.json</a>. The paper’s \
             numbers come from its authors’ machines: compare ratios.</p>\n<h2>Sides that could not be had</h2>\n<ul>\n";
    for (side, reason) in &report.absent {
        writeln!(page, "<li><b>{}</b>: {}</li>", escaped(side), escaped(reason))?;
    }
    page += "</ul>\n";
    if !report.failed.is_empty() {
        page += "<h2>Failures</h2>\n<ul class=\"warning\">\n";
        for (id, reason) in &report.failed {
            writeln!(page, "<li><a href=\"#{id}\">{id}</a>: {}</li>", escaped(reason))?;
        }
        page += "</ul>\n";
    }
    for paper in Paper::ALL {
        writeln!(page, "<h2>{}</h2>", paper.title())?;
        for entry in CONTENTS.iter().filter(|entry| entry.paper == paper) {
            self::entry(&mut page, report, entry)?;
        }
    }
    page += END;
    Ok(page)
}

fn entry(page: &mut String, report: &Report, entry: &Entry) -> Result<()> {
    writeln!(page, "<section id=\"{}\">\n<h3>{}: {}</h3>", entry.id, entry.name, entry.about)?;
    match entry.status {
        Status::Absent(reason) => writeln!(page, "<p>Not measured. {reason}</p>")?,
        Status::Questioned(reason) => writeln!(page, "<p class=\"warning\">{reason}</p>")?,
        Status::Measured => {}
    }
    if let Some(exhibit) = report.exhibit(entry.id) {
        writeln!(page, "<p><small>{}</small></p>", escaped(&exhibit.conditions))?;
        if exhibit.form != Form::Table {
            writeln!(page, "<figure>{}</figure>", plot::draw(exhibit)?)?;
        }
        table(page, exhibit)?;
    } else if entry.is_measured() {
        page.push_str("<p class=\"missed\">This run has no result.</p>\n");
    }
    page.push_str("</section>\n");
    Ok(())
}

fn table(page: &mut String, exhibit: &Exhibit) -> Result<()> {
    let unit = escaped(exhibit.unit());
    write!(page, "<table>\n<tr><th>case</th><th>side, {unit}</th>")?;
    for name in ["n", "p25", "p50", "p75", "p99", "mean", "SD", "CoV", "compared"] {
        write!(page, "<th>{name}</th>")?;
    }
    page.push_str("</tr>\n");
    for row in rows(exhibit) {
        write!(page, "<tr><td>{}</td><td>{}</td>", escaped(&row.case), escaped(&row.side))?;
        match row.cells {
            Cells::Measured { summary, compared } => {
                let Summary { count, p25, p50, p75, p99, mean, deviation, .. } = summary;
                write!(page, "<td>{count}</td>")?;
                for value in [p25, p50, p75, p99, mean, deviation] {
                    write!(page, "<td>{}</td>", digits(value))?;
                }
                let variation = 100.0 * summary.variation();
                write!(page, "<td>{variation:.1} %</td><td>{}</td>", escaped(&compared))?;
            }
            Cells::Published(value) => {
                write!(page, "<td></td>{}<td>{}</td>", "<td></td>".repeat(4), digits(value))?;
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    Ok(())
}
