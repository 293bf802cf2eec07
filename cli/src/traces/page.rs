//! A trace as one HTML page that needs no network: the waterfall, and what each span says.
//!
//! Invariant: every text of a span is escaped, and the page runs no script.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use cwasi_wire::trace::{PhaseKind, SpanKind};

use super::{Trace, TreeSpan, duration};

/// Style of the page, with a dark form of its colours.
const STYLE: &str = include_str!("page.css");

#[must_use]
pub fn html(trace: &Trace) -> String {
    let title = escaped(&trace.title());
    let mut rows = String::new();
    for span in &trace.spans {
        row(&mut rows, trace, span);
    }
    let (spans, errors) = (trace.spans.len(), trace.errors());
    let failed = if errors > 0 { format!(", {errors} failed") } else { String::new() };
    let whole = duration(trace.duration_ns());
    let began = UNIX_EPOCH + Duration::from_nanos(trace.start_ns());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title} – {whole}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"about\"><code>{id}</code> · {began} · {whole} · {spans} spans{failed}</p>\n{LEGEND}\
         <div class=\"axis\"><span>0</span><span>{half}</span><span>{whole}</span></div>\n\
         <div class=\"rows\">\n{rows}</div>\n</body>\n</html>\n",
        id = trace.id,
        began = humantime::format_rfc3339_millis(began),
        half = duration(trace.duration_ns() / 2),
    )
}

const LEGEND: &str = "<p class=\"legend\"><i class=\"call\"></i>call <i class=\"queue\"></i>queue \
                      <i class=\"transfer\"></i>transfer <i class=\"run\"></i>run <i class=\"start\"></i>images, start, end \
                      · the time beside a bar is of all of it, queue included</p>\n";

/// One span: a line that opens to its details.
fn row(rows: &mut String, trace: &Trace, span: &TreeSpan) {
    let recorded = &span.recorded.span;
    let failed = if span.error().is_some() { " failed" } else { "" };
    let (mode, moved) = (escaped(&recorded.mode), escaped(&span.mode_and_path()));
    // Writing to a text never fails.
    let _ = write!(
        rows,
        "<details class=\"row{failed}\"><summary><span class=\"name\" style=\"--depth:{depth}\">{orphan}{name}\
         </span><span class=\"mode {mode}\">{moved}</span><span class=\"time\">{time}</span><span class=\"bar\">",
        depth = span.depth,
        orphan = if span.has_parent { "" } else { "… " },
        name = escaped(&span.title()),
        time = duration(span.duration_ns()),
    );
    // Between its phases, a run waits for its functions.
    let is_call = recorded.phases.is_empty() || recorded.kind == SpanKind::Run;
    let class = if is_call { "call" } else { "transfer" };
    part(rows, trace, class, (recorded.start_ns, recorded.end_ns));
    for phase in &recorded.phases {
        let class = match phase.kind {
            PhaseKind::Answer => "transfer",
            PhaseKind::Images | PhaseKind::End => "start",
            kind => kind.name(),
        };
        part(rows, trace, class, (phase.start_ns, phase.end_ns));
    }
    let _ = write!(rows, "</span></summary><dl>");
    for (term, text) in span.facts() {
        let _ = write!(rows, "<dt>{term}</dt><dd>{}</dd>", escaped(&text));
    }
    let _ = writeln!(rows, "</dl></details>");
}

/// A part of a bar, in per cent of the trace.
fn part(rows: &mut String, trace: &Trace, class: &str, (start, end): (u64, u64)) {
    #[expect(clippy::cast_precision_loss, reason = "a place on a screen")]
    let percent = |ns: u64| ns as f64 * 100.0 / trace.duration_ns().max(1) as f64;
    let left = percent(start.saturating_sub(trace.start_ns())).clamp(0.0, 100.0);
    let width = percent(end.saturating_sub(start)).min(100.0 - left);
    let _ = write!(rows, "<i class=\"{class}\" style=\"left:{left:.3}%;width:{width:.3}%\"></i>");
}

/// Text for HTML, in an element or an attribute.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::tests::trace;
    use super::*;

    #[test]
    fn a_hostile_text_stays_text() {
        let mut trace = trace();
        trace.spans[1].recorded.span.peer = "<script>alert('x')</script>".into();
        trace.spans[1].recorded.span.reason = "\" onclick=\"x".into();
        let html = html(&trace);
        assert!(!html.contains("<script") && !html.contains("\" onclick"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)"));
    }

    #[test]
    fn a_page_has_a_row_for_each_span_and_needs_no_network() {
        let html = html(&trace());
        assert_eq!(html.matches("<details").count(), 3);
        assert!(html.contains("left:30.000%;width:40.000%"), "{html}");
        // Its time of day, and what a bar's time includes.
        assert!(html.contains("· 2023-11-14T22:13:20.000Z ·"), "{html}");
        assert!(html.contains("queue included"), "{html}");
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_dashboard_has_the_same_colours() {
        let dashboard = include_str!("../dashboard/style.css");
        for name in ["queue", "transfer", "run", "start", "embedded", "local", "networked", "emit"]
        {
            let values = |style: &str| {
                let field = format!("--{name}: ");
                let parts = style.split(&field).skip(1);
                parts.map(|part| part[..part.find(';').unwrap()].to_owned()).collect::<Vec<_>>()
            };
            assert_eq!(values(STYLE).len(), 2, "{name}: light and dark");
            assert_eq!(values(STYLE), values(dashboard), "{name}");
        }
    }
}
