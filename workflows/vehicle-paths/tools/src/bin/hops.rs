//! `hops`: prints who called whom how, how often and how fast, from one or more `edges.json`
//! files. Rows of the same edge are joined: counts are added, and of the percentiles the slowest
//! is kept, because percentiles cannot be added.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::Deserialize;

/// Print the table of hops.
#[derive(Parser)]
struct Options {
    /// `edges.json` files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// One row of an `edges.json`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Edge {
    caller: String,
    callee: String,
    mode: String,
    reason: String,
    calls: u64,
    errors: u64,
    request_bytes: u64,
    response_bytes: u64,
    p50_us: f64,
    p99_us: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut edges = Vec::new();
    for file in &options.files {
        edges.extend(read(file)?);
    }
    let edges = join(edges);
    ensure!(!edges.is_empty(), "no calls are recorded in these files");
    print!("{}", table(&edges));
    Ok(())
}

fn read(path: &Path) -> Result<Vec<Edge>> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("understand {}", path.display()))
}

fn join(edges: Vec<Edge>) -> Vec<Edge> {
    let mut joined: BTreeMap<(String, String, String, String), Edge> = BTreeMap::new();
    for edge in edges {
        let key =
            (edge.caller.clone(), edge.callee.clone(), edge.mode.clone(), edge.reason.clone());
        match joined.get_mut(&key) {
            None => {
                joined.insert(key, edge);
            }
            Some(known) => {
                known.calls += edge.calls;
                known.errors += edge.errors;
                known.request_bytes += edge.request_bytes;
                known.response_bytes += edge.response_bytes;
                known.p50_us = known.p50_us.max(edge.p50_us);
                known.p99_us = known.p99_us.max(edge.p99_us);
            }
        }
    }
    joined.into_values().collect()
}

const HEAD: [&str; 9] =
    ["caller -> callee", "mode", "why", "calls", "errors", "MB out", "MB in", "p50", "p99"];

fn table(edges: &[Edge]) -> String {
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
    let row = |edge: &Edge| {
        [
            format!("{} -> {}", edge.caller, edge.callee),
            edge.mode.clone(),
            edge.reason.clone(),
            edge.calls.to_string(),
            edge.errors.to_string(),
            megabytes(edge.request_bytes),
            megabytes(edge.response_bytes),
            duration(edge.p50_us),
            duration(edge.p99_us),
        ]
    };
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(edges.iter().map(row));
    let width = |k: usize| rows.iter().map(|row| row[k].chars().count()).max().unwrap_or(0);
    let widths: [usize; HEAD.len()] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate().map(|(k, (cell, width))| {
            if k < 3 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn duration(us: f64) -> String {
    match us {
        ..1e3 => format!("{us:.0} us"),
        1e3..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(callee: &str, calls: u64, p99_us: f64) -> Edge {
        Edge {
            caller: "extract-frames".to_owned(),
            callee: callee.to_owned(),
            mode: "Local".to_owned(),
            reason: "same host".to_owned(),
            calls,
            errors: 0,
            request_bytes: 1_500_000,
            response_bytes: 20_000,
            p50_us: 900.0,
            p99_us,
        }
    }

    #[test]
    fn rows_line_up_and_the_same_edge_is_one_row() {
        let edges = vec![edge("b", 2, 1_500.0), edge("a", 1, 10.0), edge("b", 3, 2_500_000.0)];
        let text = table(&join(edges));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("extract-frames -> a"));
        assert!(lines[2].contains("5") && lines[2].ends_with("2.50 s"), "{text}");
        assert!(lines[2].contains("3.00"), "{text}");
    }
}
