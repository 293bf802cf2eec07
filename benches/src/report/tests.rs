//! Tests of the report's shape, for machines and for people.

use serde_json::Value;

use super::*;

fn measured(name: &'static str, delivery: f64, call: f64) -> Measured {
    let rounds = |value: f64| Rounds(vec![vec![value, value * 2.0, value * 3.0]; 4]);
    Measured { name, delivery: rounds(delivery), call: rounds(call) }
}

fn report() -> Report {
    let mut report = Report::new();
    let sides = [
        measured("ours", 10.0, 20.0),
        measured("uds-copy", 600.0, 700.0),
        measured("uds-copy-warm", 300.0, 350.0),
        measured("memcpy", 100.0, 100.0),
    ];
    report.add_turns("local-100MiB-inplace-touch-none", "conditions <here>", &sides);
    let sides = [
        measured("ours", 10.0, 40.0),
        measured("uds-pingpong", 6.0, 6.0),
        measured("http-loopback", 20.0, 30.0),
        measured("http-wasmedge", 50.0, 60.0),
    ];
    report.add_turns("local-64B", "small", &sides);
    report.add(Entry::failed("fanout-2MiB-100-touch-none", "no such thing"));
    report
}

#[test]
fn an_entry_has_what_the_issue_asks_for() {
    let report = report();
    let json: Value = serde_json::to_value(&report.entries).unwrap();
    let keys =
        ["case", "unit", "ours_p50", "ours_p99", "baseline", "baseline_p50", "ratio", "conditions"];
    for entry in json.as_array().unwrap() {
        assert!(keys.iter().all(|key| entry.get(key).is_some()), "{entry}");
    }
    let first = &json[0];
    assert_eq!(first["case"], "local-100MiB-inplace-touch-none");
    assert_eq!(
        (first["ours_p50"].as_f64(), first["baseline_p50"].as_f64()),
        (Some(20.0), Some(1200.0))
    );
    assert_eq!((first["ratio"].as_f64(), first["met"].as_bool()), (Some(60.0), Some(true)));
    let conditions = first["conditions"].as_str().unwrap();
    assert!(conditions.contains("warm buffer the ratios are 30.00"), "{conditions}");
    assert!(conditions.contains("memcpy of it into fresh memory: 200.0 us"), "{conditions}");
}

#[test]
fn deliveries_and_calls_have_their_own_entries() {
    let report = report();
    let names: Vec<(&str, &str)> =
        report.entries.iter().map(|one| (one.case.as_str(), one.baseline.as_str())).collect();
    assert_eq!(
        names,
        [
            ("local-100MiB-inplace-touch-none", "uds-copy"),
            ("local-100MiB-inplace-touch-none-call", "uds-copy"),
            ("local-64B", "http-loopback"),
            ("local-64B-call", "uds-pingpong"),
            ("local-64B-call", "http-loopback"),
            ("fanout-2MiB-100-touch-none", "none"),
        ]
    );
    let small = &report.entries[3];
    assert_eq!(small.direction, Direction::OursByBaseline);
    // 80 µs beside 12: more than twice and 30.
    assert_eq!((small.ratio.map(f64::round), small.met), (Some(7.0), Some(false)));
    let guests = "between two WasmEdge guests: 100.0 us (delivery), 120.0 us (call)";
    assert!(report.entries[4].conditions.contains(guests), "{}", report.entries[4].conditions);
}

#[test]
fn a_side_without_samples_is_a_failure() {
    let mut report = Report::new();
    let empty = Measured::new("uds-copy");
    report.add_turns("case", "", &[measured("ours", 1.0, 1.0), empty]);
    assert_eq!(report.failures().len(), 2);
}

#[test]
fn the_page_is_self_contained_and_says_what_failed() {
    let page = page::render(&report()).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for missing in ["<script", "http://", "https://", "<link", "<here>"] {
        let allowed = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!allowed.contains(missing), "{missing}");
    }
    for there in
        ["<svg", "failed: no such thing", "not measured", "<td>144</td>", "conditions &lt;here&gt;"]
    {
        assert!(page.contains(there), "{there}");
    }
}
