//! The report as one HTML page: self-contained, without scripts, for screen, phone and paper.

use std::fmt::Write as _;

use anyhow::Result;

use super::charts::{Chart, Line, colour};
use super::paper::{PARALLEL, Row, SEQUENTIAL, SYSTEMS};
use super::terminal::{digits, with_unit};
use super::{BARS, Direction, Entry, Report};
use crate::plan::{MIB, size_name};

/// Payloads on the horizontal axis of the charts.
const SIZES: [usize; 6] = [64, 65_536, 2 * MIB, 10 * MIB, 50 * MIB, 100 * MIB];
/// Branches on the horizontal axis of the charts.
const BRANCHES: [u32; 5] = [10, 50, 100, 250, 500];
/// Systems with a line, and a baseline of this name.
const LINES: [&str; 4] = ["ours", "uds-copy", "http-loopback", "redis"];

/// The beginning of a report's page, which ends with [`END`].
#[must_use]
pub fn begin(title: &str, heading: &str) -> String {
    include_str!("page.head.html").replace("@title@", title).replace("@heading@", heading)
}

pub const END: &str = "</main></body></html>\n";

/// The page.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn render(report: &Report) -> Result<String> {
    let mut page = begin("CWASI benches", "CWASI beside what one would otherwise use");
    let quiet = if report.machine.was_quiet() { "" } else { " class=\"warning\"" };
    write!(page, "<p{quiet}>{}</p>", escaped(&report.machine.sentence()))?;
    bars(&mut page, report)?;
    figures(&mut page, report)?;
    published(&mut page, report)?;
    entries(&mut page, report)?;
    page.push_str(END);
    Ok(page)
}

fn bars(page: &mut String, report: &Report) -> Result<()> {
    page.push_str("<h2>Bars</h2><p>Ratios of medians of this run; in brackets the quartiles of the rounds' own ratios. A ratio is baseline ÷ ours, but where at most something is asked: there it is ours ÷ baseline.</p>");
    page.push_str("<table><thead><tr><th>case</th><th>beside</th><th>asked</th><th>found</th><th></th></tr></thead><tbody>");
    for bar in BARS {
        let mut found = report.entries.iter().filter(|one| one.case == bar.case);
        let entry = found.find(|one| one.baseline == bar.baseline);
        let (value, class, verdict) = match entry {
            None => ("–".to_owned(), "", "not measured"),
            Some(entry) if entry.met == Some(true) => (measured(entry), "met", "met"),
            Some(entry) => (measured(entry), "missed", "not met"),
        };
        write!(
            page,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{value}</td><td class=\"{class}\">{verdict}</td></tr>",
            bar.case, bar.baseline, bar.limit
        )?;
    }
    page.push_str("</tbody></table>");
    Ok(())
}

/// Ratio and spread, or the value itself.
fn measured(entry: &Entry) -> String {
    if entry.failed.is_some() {
        return "failed".to_owned();
    }
    match (entry.ratio, entry.ratio_low, entry.ratio_high) {
        (Some(ratio), Some(low), Some(high)) => {
            format!("{}× <small>({}–{})</small>", digits(ratio), digits(low), digits(high))
        }
        _ => with_unit(entry.ours_p50, entry.unit),
    }
}

fn figures(page: &mut String, report: &Report) -> Result<()> {
    let sizes =
        || SIZES.map(|size| (f64::from(u32::try_from(size).unwrap_or(u32::MAX)), label(size)));
    let branches = || BRANCHES.map(|count| (f64::from(count), count.to_string()));
    let over_sizes = |title, touch: &str, tail: &str| Chart {
        title,
        places: sizes().to_vec(),
        lines: lines(report, &sizes().map(|(at, _)| at), |at| local(SIZES[at], touch, tail)),
    };
    let over_branches = |title, experiment: &str, tail: &str| Chart {
        title,
        places: branches().to_vec(),
        lines: lines(report, &branches().map(|(at, _)| at), |at| {
            format!("{experiment}-2MiB-{}{tail}", BRANCHES[at])
        }),
    };
    let charts = [
        over_sizes("Delivery: until the callee has the payload, unread", "none", ""),
        over_sizes("Whole call, the callee reads all of it", "all", "-call"),
        over_branches("Fan-out of 2 MiB: until the last callee has it", "fanout", "-touch-none"),
        over_branches("Fan-out of 2 MiB: until all have answered", "fanout", "-touch-none-call"),
        over_branches("Fan-in of 2 MiB parts, whole call", "fanin", "-call"),
    ];
    page.push_str("<h2>Charts</h2><p>Medians; both axes logarithmic; payloads made in place.</p><ul class=\"legend\">");
    for name in LINES {
        let plotters::style::RGBColor(r, g, b) = colour(name);
        write!(page, "<li><span style=\"background:rgb({r},{g},{b})\"></span>{name}</li>")?;
    }
    page.push_str("</ul><div class=\"charts\">");
    for chart in charts.iter().filter(|chart| chart.has_points()) {
        write!(page, "<figure><figcaption>{}</figcaption>{}</figure>", chart.title, chart.svg()?)?;
    }
    page.push_str("</div>");
    Ok(())
}

/// Case of a local call with a payload made in place.
fn local(size: usize, touch: &str, tail: &str) -> String {
    let middle = match size {
        64 => String::new(),
        65_536 => format!("-touch-{touch}"),
        _ => format!("-inplace-touch-{touch}"),
    };
    format!("local-{}{middle}{tail}", size_name(size))
}

fn label(size: usize) -> String {
    match size {
        // Between 50 and 100 there is no room for more words.
        _ if size == 50 * MIB || size == 10 * MIB => String::new(),
        _ => size_name(size),
    }
}

/// One line for each system, from the medians of the cases that `case` names for each place.
fn lines(report: &Report, places: &[f64], case: impl Fn(usize) -> String) -> Vec<Line> {
    let points = |name: &str| {
        let at = |index: usize| {
            let mut entries = report.entries.iter().filter(|entry| entry.case == case(index));
            match name {
                "ours" => entries.find_map(|entry| entry.ours_p50),
                _ => entries.find(|entry| entry.baseline == name)?.baseline_p50,
            }
        };
        let indexed = places.iter().enumerate();
        indexed.filter_map(|(index, place)| Some((*place, at(index)?))).collect()
    };
    LINES.iter().map(|name| Line { name, points: points(name) }).collect()
}

fn published(page: &mut String, report: &Report) -> Result<()> {
    page.push_str(
        "<h2>The paper's tables beside ours</h2><p class=\"warning\">Different hardware (the paper: Intel NUC, i5 2.9 GHz, 8 GB, \
         Ubuntu 22.04) and another way of measuring: the columns show orders of magnitude, and no ratio between them means \
         anything. Ours are medians. The paper's latency ends when the callee's shim has the payload; ours ends when the callee's \
         handler has it, for fan-out the last one's, for fan-in when all have their answers. Our requests in a second are those \
         of one caller, from the duration of whole calls.</p>",
    );
    let median = |case: &str| report.entries.iter().find(|one| one.case == case)?.ours_p50;
    let latency =
        |row: &Row| (row.latency.map(|seconds| seconds * 1e3), median(row.case).map(|us| us / 1e3));
    let throughput =
        |row: &Row| (row.throughput, median(row.call).map(|us| f64::from(row.requests) * 1e6 / us));
    for (title, rows) in [
        ("Table 1: sequential", &SEQUENTIAL[..]),
        ("Table 2: fan-out and fan-in of 2 MB", &PARALLEL[..]),
    ] {
        published_table(page, &format!("{title}, latency in ms"), rows, latency)?;
        published_table(page, &format!("{title}, requests in a second"), rows, throughput)?;
    }
    Ok(())
}

/// One table of the paper's numbers and ours.
fn published_table(
    page: &mut String,
    title: &str,
    rows: &[Row],
    numbers: impl Fn(&Row) -> ([f64; 3], Option<f64>),
) -> Result<()> {
    write!(page, "<h3>{title}</h3><table><thead><tr><th></th>")?;
    for system in SYSTEMS {
        write!(page, "<th>{system} <small>(paper)</small></th>")?;
    }
    page.push_str("<th>this machine</th></tr></thead><tbody>");
    for row in rows {
        let (published, ours) = numbers(row);
        write!(page, "<tr><td>{}</td>", row.experiment)?;
        for number in published {
            write!(page, "<td>{}</td>", digits(number))?;
        }
        let ours = ours.map_or_else(|| "–".to_owned(), digits);
        write!(page, "<td>{ours}</td></tr>")?;
    }
    page.push_str("</tbody></table>");
    Ok(())
}

fn entries(page: &mut String, report: &Report) -> Result<()> {
    page.push_str("<h2>All cases</h2>");
    for case in report.entries.chunk_by(|one, next| one.case == next.case) {
        let [first, ..] = case else { continue };
        write!(page, "<section class=\"entry\"><h3><code>{}</code></h3>", first.case)?;
        for reason in case.iter().filter_map(|entry| entry.failed.as_ref()) {
            write!(page, "<p class=\"missed\">failed: {}</p>", escaped(reason))?;
        }
        if first.ours_p50.is_some() {
            numbers(page, case)?;
        }
        // The same but for what took part besides, which the longest one lists.
        let conditions = case.iter().map(|entry| &entry.conditions).max_by_key(|text| text.len());
        let conditions = conditions.map(|text| escaped(text)).unwrap_or_default();
        write!(page, "<p><small>{conditions}; {} repeats</small></p></section>", first.repeats)?;
    }
    Ok(())
}

/// One case beside all of its baselines.
fn numbers(page: &mut String, case: &[Entry]) -> Result<()> {
    page.push_str("<table><thead><tr><th></th><th>min</th><th>p50</th><th>p99</th><th>ratio</th></tr></thead><tbody>");
    let mut row = |name: &str, unit, samples: [Option<f64>; 3], ratio: &str| {
        let [min, p50, p99] = samples.map(|value| with_unit(value, unit).replace(' ', "&nbsp;"));
        write!(
            page,
            "<tr><td>{name}</td><td>{min}</td><td>{p50}</td><td>{p99}</td><td>{ratio}</td></tr>"
        )
    };
    for (index, entry) in case.iter().enumerate() {
        if index == 0 {
            row("ours", entry.unit, [entry.ours_min, entry.ours_p50, entry.ours_p99], "")?;
        }
        if entry.baseline != "none" {
            let way = match entry.direction {
                Direction::BaselineByOurs => "",
                Direction::OursByBaseline => " <small>ours ÷ baseline</small>",
            };
            let ratio = format!("{}{way}", measured(entry));
            let theirs = [entry.baseline_min, entry.baseline_p50, entry.baseline_p99];
            row(&entry.baseline, entry.unit, theirs, &ratio)?;
        }
    }
    page.push_str("</tbody></table>");
    Ok(())
}

/// Text without meaning to a browser.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
