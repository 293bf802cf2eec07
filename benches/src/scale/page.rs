//! The curves as one HTML page, with the style and the charts of the benches' page.

use std::fmt::Write as _;

use anyhow::Result;

use super::curve::Curve;
use super::report::{Report, amount, exponents, figure};
use crate::report::charts::{Chart, Line};
use crate::report::page::{END, begin, escaped};

/// The page.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn render(report: &Report) -> Result<String> {
    let mut page = begin("CWASI: how cost grows", "How cost grows");
    let quiet = if report.machine.was_quiet() { "" } else { " class=\"warning\"" };
    write!(page, "<p{quiet}>{}</p>", escaped(&report.machine.sentence()))?;
    page.push_str(
        "<p>Exponents are slopes of the medians on logarithmic axes: of all points, and of the last half. The cost of \
         all grows superlinearly above 1.15; the cost of one, above 0.15.</p>",
    );
    for failure in &report.failures {
        let reason = escaped(&failure.reason);
        write!(page, "<p class=\"missed\">{} failed: {reason}</p>", failure.group)?;
    }
    for curve in &report.curves {
        section(&mut page, curve)?;
    }
    page.push_str(END);
    Ok(page)
}

fn section(page: &mut String, curve: &Curve) -> Result<()> {
    let marked =
        if curve.is_superlinear() { " <span class=\"missed\">SUPERLINEAR</span>" } else { "" };
    write!(page, "<section class=\"entry\"><h2>{}{marked}</h2>", curve.name)?;
    write!(page, "<p>Exponents: {}. <small>{}</small></p>", exponents(curve), curve.conditions)?;
    write!(page, "<table><thead><tr><th>{}</th><th>p50/p99</th></tr></thead><tbody>", curve.over)?;
    for point in &curve.points {
        let (at, figure) = (amount(curve, point.at), figure(curve, point));
        write!(page, "<tr><td>{at}</td><td>{figure}</td></tr>")?;
    }
    page.push_str("</tbody></table>");
    // The charts' axis is one of times.
    if curve.unit == "us" {
        write!(page, "<figure>{}</figure>", chart(curve).svg()?)?;
    }
    page.push_str("</section>");
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "amounts up to 2^30")]
fn chart(curve: &Curve) -> Chart {
    let drawn = || curve.points.iter().filter(|point| point.at > 0);
    Chart {
        title: curve.name,
        places: drawn().map(|point| (point.at as f64, amount(curve, point.at))).collect(),
        lines: vec![Line {
            name: "ours",
            points: drawn().map(|point| (point.at as f64, point.cost.p50)).collect(),
        }],
    }
}
