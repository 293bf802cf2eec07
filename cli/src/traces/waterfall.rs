//! The waterfall of a trace for a terminal: a line for each span, its bar at its time.

use std::fmt::Write as _;

use cwasi_wire::trace::{PhaseKind, SpanKind};

use super::{Trace, TreeSpan, duration};
use crate::deployment::hops::bytes;

/// Narrowest and widest picture in columns.
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 200;
/// Share of the width that names may take.
const NAMES: usize = 3;
/// Spaces for each level of the tree.
const INDENT: usize = 2;

/// The picture, at most `width` columns wide; the narrowest is 60.
#[must_use]
pub fn text(trace: &Trace, width: usize) -> String {
    let width = width.clamp(WIDTH_MIN, WIDTH_MAX);
    let rows: Vec<Row> = trace.spans.iter().map(Row::of).collect();
    let widest = |cell: fn(&Row) -> &str| {
        rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0)
    };
    let names = widest(|row| &row.name).min(width / NAMES);
    let (modes, times) = (widest(|row| &row.mode), widest(|row| &row.duration));
    let sizes = widest(|row| &row.bytes);
    let bar = width.saturating_sub(names + modes + times + sizes + 4 * 2).max(10);
    let mut text = String::new();
    for (row, span) in rows.iter().zip(&trace.spans) {
        let name = cut(&row.name, names);
        let drawn = bar_of(trace, span, bar);
        let line = format!(
            "{name:names$}  {:modes$}  {:>times$}  {:>sizes$}  {drawn}",
            row.mode, row.duration, row.bytes
        );
        // Writing to a text never fails.
        let _ = writeln!(text, "{}{}", line.trim_end(), row.error);
    }
    text
}

struct Row {
    name: String,
    mode: String,
    duration: String,
    bytes: String,
    error: String,
}

impl Row {
    fn of(span: &TreeSpan) -> Self {
        let recorded = &span.recorded.span;
        let orphan = if span.has_parent { "" } else { "... " };
        let moved = recorded.request_bytes > 0 || recorded.response_bytes > 0;
        let (sent, received) = (bytes(recorded.request_bytes), bytes(recorded.response_bytes));
        Self {
            name: format!("{}{orphan}{}", " ".repeat(span.depth * INDENT), span.title()),
            mode: span.mode_and_path(),
            duration: duration(span.duration_ns()),
            bytes: if moved { format!("{sent}>{received}") } else { String::new() },
            error: span.error().map_or_else(String::new, |error| format!("  {error}")),
        }
    }
}

fn cut(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    name.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The bar of a span: its phases, if it has any.
fn bar_of(trace: &Trace, span: &TreeSpan, width: usize) -> String {
    let (start, whole) = (trace.start_ns(), trace.duration_ns().max(1));
    let column = |ns: u64| {
        let at = u128::from(ns.saturating_sub(start)) * width as u128 / u128::from(whole);
        usize::try_from(at).unwrap_or(width).min(width)
    };
    let mut cells = vec![' '; width];
    let mut draw = |from: u64, to: u64, symbol: char| {
        let first = column(from).min(width - 1);
        let last = column(to).clamp(first + 1, width);
        cells[first..last].fill(symbol);
    };
    let recorded = &span.recorded.span;
    // Between its phases, a run waits for its functions.
    let is_call = recorded.phases.is_empty() || recorded.kind == SpanKind::Run;
    let symbol = if is_call { '─' } else { '▒' };
    draw(recorded.start_ns, recorded.end_ns, symbol);
    for phase in &recorded.phases {
        let symbol = match phase.kind {
            PhaseKind::Queue => '░',
            PhaseKind::Transfer | PhaseKind::Answer => '▒',
            PhaseKind::Run => '█',
            PhaseKind::Images | PhaseKind::Start | PhaseKind::End => '▒',
        };
        draw(phase.start_ns, phase.end_ns, symbol);
    }
    cells.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::trace;
    use super::*;

    #[test]
    fn a_child_is_indented_and_its_bar_lies_inside_its_parents() {
        let text = text(&trace(), 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("run a ") && lines[1].starts_with("  a calls peer"));
        assert!(lines[2].starts_with("    b ") && lines[2].contains("40.0us"), "{text}");
        let begin = |line: &str| line.chars().position(|c| "─█▒░".contains(c)).unwrap();
        assert!(begin(lines[0]) < begin(lines[1]) && begin(lines[1]) < begin(lines[2]), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_long_name_is_cut_and_an_error_is_named() {
        let mut trace = trace();
        trace.spans[2].recorded.service = "long".repeat(40);
        trace.spans[2].recorded.span.errno = 5;
        let text = text(&trace, 10);
        assert!(
            text.contains('…') && text.lines().last().unwrap().ends_with("  timeout"),
            "{text}"
        );
    }
}
