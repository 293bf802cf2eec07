//! What sandboxes report about their calls, up to `edges.json` (`shim::edges`).
#![no_main]

use cwasi_fuzz::memory::{bounded, within};
use cwasi_fuzz::shim::edges::EdgeTable;
use cwasi_fuzz::wire::control::{SandboxMessage, decode};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Longest name or reason in the file, in bytes, with the module's name before it.
const NAME_MAX: usize = 512 + 1 + 512;
/// Most lines.
const EDGES_MAX: usize = 512;
/// Memory of one edge: its histogram, for the most part.
const EDGE: usize = 192 << 10;

fuzz_target!(|data: &[u8]| {
    let message = bounded(data, 96, || decode::<SandboxMessage>(data));
    let Ok(SandboxMessage::Edges(reports)) = message else { return };
    let mut table = EdgeTable::default();
    let room = (4 << 20) + reports.len().min(EDGES_MAX) * EDGE + 32 * data.len();
    let text = within(room, || {
        for _ in 0..2 {
            reports.iter().for_each(|report| table.add("caller", report.clone()));
        }
        table.to_json().expect("JSON")
    });
    let lines: Vec<Value> = serde_json::from_slice(&text).expect("a list");
    assert!(lines.len() <= EDGES_MAX && lines.is_empty() == reports.is_empty());
    for line in lines {
        for name in ["caller", "callee", "mode", "reason"] {
            assert!(line[name].as_str().expect("text").len() <= NAME_MAX);
        }
        assert!(line["caller"].as_str().is_some_and(|name| name.starts_with("caller")));
        let quantile = |name: &str| line[name].as_f64().expect("a number");
        assert!(quantile("p50_us") <= quantile("p99_us"));
    }
});
