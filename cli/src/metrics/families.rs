//! The metric families: one row each. `docs/metrics.md` has this table, and a test compares.

/// A family of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name as queries write it.
    pub name: &'static str,
    pub kind: FamilyType,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    /// Only grows.
    Counter,
    Gauge,
    Histogram,
}

impl FamilyType {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

const EDGE: &[&str] =
    &["namespace", "pod_namespace", "workflow", "caller", "callee", "mode", "path"];
const EDGE_ERROR: &[&str] =
    &["namespace", "pod_namespace", "workflow", "caller", "callee", "mode", "path", "kind"];
const FUNCTION: &[&str] = &["namespace", "pod_namespace", "workflow", "function"];
const NODE: &[&str] = &[];

pub const CALLS: Family = counter("cwasi_calls_total", EDGE, "Ended calls, failed ones included");
pub const ERRORS: Family = counter(
    "cwasi_call_errors_total",
    EDGE_ERROR,
    "Failed calls by kind, which is the errno's name",
);
/// Bytes of requests.
pub const SENT: Family = counter("cwasi_sent_bytes_total", EDGE, "Payload bytes that callers sent");
/// Bytes of responses.
pub const RECEIVED: Family =
    counter("cwasi_received_bytes_total", EDGE, "Response bytes that callers received");
pub const DURATION: Family = Family {
    name: "cwasi_call_duration_seconds",
    kind: FamilyType::Histogram,
    labels: EDGE,
    help: "Time from the caller's call to its end",
};
pub const INSTANCES: Family =
    gauge("cwasi_function_instances", FUNCTION, "Running instances of a secondary");
pub const WORKERS: Family = gauge("cwasi_function_workers", FUNCTION, "Workers of all instances");
pub const BUSY: Family =
    gauge("cwasi_function_workers_busy", FUNCTION, "Workers that have a request");
pub const QUEUED: Family =
    gauge("cwasi_function_queue_length", FUNCTION, "Requests that wait for a worker");
pub const REFUSED: Family = counter(
    "cwasi_function_refused_total",
    FUNCTION,
    "Requests that were refused because the queue was full",
);
pub const POOL: Family = gauge(
    "cwasi_function_pool_bytes",
    FUNCTION,
    "Bytes of shared memory that workers keep to lend it",
);
/// Faults of the state folder.
pub const UNREADABLE: Family =
    gauge("cwasi_unreadable_files", NODE, "Files with metrics that cannot be read");

/// All of them, in the order of the output.
pub const ALL: [Family; 12] = [
    CALLS, ERRORS, SENT, RECEIVED, DURATION, INSTANCES, WORKERS, BUSY, QUEUED, REFUSED, POOL,
    UNREADABLE,
];

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: FamilyType::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: FamilyType::Gauge, labels, help }
}

/// The table of `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = "| name | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Family { name, kind, labels, help } in ALL {
        let labels = match labels {
            EDGE => "edge".to_owned(),
            EDGE_ERROR => "edge, `kind`".to_owned(),
            FUNCTION => "function".to_owned(),
            _ => String::new(),
        };
        text += &format!("| `{name}` | {} | {labels} | {help} |\n", kind.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Of a file of the repository.
    fn read(path: &str) -> String {
        std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn the_documentation_has_the_table() {
        let table = markdown();
        assert!(read("docs/metrics.md").contains(&table), "docs/metrics.md needs:\n{table}");
    }

    #[test]
    fn the_dashboard_and_the_alerts_ask_for_what_there_is() {
        let names = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.filter(|word| word.starts_with("cwasi_")).map(str::to_owned).collect()
        };
        let is_known = |name: &str| {
            ALL.iter().any(|family| match family.kind {
                FamilyType::Histogram => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|suffix| name.strip_suffix(suffix) == Some(family.name)),
                FamilyType::Counter | FamilyType::Gauge => name == family.name,
            })
        };
        for path in ["deploy/grafana/cwasi.json", "deploy/grafana/alerts.yaml"] {
            let asked = names(&read(path));
            assert!(!asked.is_empty(), "{path}");
            for name in asked {
                assert!(is_known(&name), "{path}: {name}");
            }
        }
    }

    #[test]
    fn the_dashboard_is_one_of_grafanas() {
        let board: serde_json::Value =
            serde_json::from_str(&read("deploy/grafana/cwasi.json")).unwrap();
        assert_eq!((&board["id"], &board["uid"]), (&serde_json::Value::Null, &"cwasi".into()));
        let panels = board["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len());
        for panel in panels {
            assert!(panel["title"].is_string() && panel["gridPos"]["w"].as_u64() <= Some(24));
            for target in panel["targets"].as_array().into_iter().flatten() {
                assert!(target["expr"].is_string() && target["refId"].is_string(), "{target}");
                assert_eq!(panel["datasource"]["uid"], "${datasource}");
            }
        }
    }
}
