//! What sandboxes report about their calls, up to `edges.json` (`host::metrics::edges`).
#![no_main]

use cwasi_fuzz::memory::{bounded, within};
use cwasi_host::metrics::edges::EdgeTable;
use cwasi_host::metrics::snapshot::{EdgeSnapshot, FunctionKey};
use cwasi_wire::control::{SandboxMessage, decode};
use libfuzzer_sys::fuzz_target;

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
    let caller = FunctionKey { function: "caller".into(), ..FunctionKey::default() };
    let room = (4 << 20) + reports.len().min(EDGES_MAX) * EDGE + 32 * data.len();
    let text = within(room, || {
        for _ in 0..2 {
            reports.iter().for_each(|report| table.add(&caller, report.clone()));
        }
        let lines = table.changed().unwrap_or_default();
        serde_json::to_vec(&lines).expect("JSON")
    });
    let lines: Vec<EdgeSnapshot> = serde_json::from_slice(&text).expect("a list");
    assert!(lines.len() <= EDGES_MAX && lines.is_empty() == reports.is_empty());
    for EdgeSnapshot { key, reason, counts, p50_us, p99_us, .. } in lines {
        for name in [&key.caller, &key.callee, &key.mode, &reason] {
            assert!(name.len() <= NAME_MAX);
        }
        assert!(key.caller.starts_with("caller") && p50_us <= p99_us);
        assert!(counts.error_kinds.values().all(|errors| *errors <= counts.errors));
    }
});
