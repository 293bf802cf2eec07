//! A trace in one line: what lists of traces show, and what nodes tell each other of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cwasi_wire::trace::TraceId;
use serde::{Deserialize, Serialize};

use super::Trace;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Summary {
    pub trace: TraceId,
    pub start_ns: u64,
    pub duration_ns: u64,
    pub spans: usize,
    pub errors: usize,
    /// What began it.
    pub title: String,
}

impl Summary {
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        Self {
            trace: trace.id,
            start_ns: trace.start_ns(),
            duration_ns: trace.duration_ns(),
            spans: trace.spans.len(),
            errors: trace.errors(),
            title: trace.title(),
        }
    }

    /// Adds what another node has of the same trace.
    fn add(&mut self, other: Self) {
        let end = |it: &Self| it.start_ns.saturating_add(it.duration_ns);
        let end = end(self).max(end(&other));
        if other.start_ns < self.start_ns {
            (self.start_ns, self.title) = (other.start_ns, other.title);
        }
        self.duration_ns = end.saturating_sub(self.start_ns);
        self.spans = self.spans.saturating_add(other.spans);
        self.errors = self.errors.saturating_add(other.errors);
    }
}

/// One summary of each trace, the newest first, from what several nodes have of them.
#[must_use]
pub fn merged(summaries: impl IntoIterator<Item = Summary>) -> Vec<Summary> {
    let mut traces: BTreeMap<String, Summary> = BTreeMap::new();
    for summary in summaries {
        match traces.get_mut(&summary.trace.to_string()) {
            Some(known) => known.add(summary),
            None => {
                traces.insert(summary.trace.to_string(), summary);
            }
        }
    }
    let mut all: Vec<_> = traces.into_values().collect();
    all.sort_by_key(|it| Reverse(it.start_ns));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_trace_on_several_nodes_are_one() {
        let part = |id: u8, start_ns, duration_ns, title: &str| Summary {
            trace: TraceId::from_bytes([id; 16]).unwrap(),
            start_ns,
            duration_ns,
            spans: 2,
            errors: 1,
            title: title.to_owned(),
        };
        let all = merged([part(1, 20, 5, "b"), part(2, 15, 1, "c"), part(1, 10, 8, "a")]);
        assert_eq!(
            all,
            [part(2, 15, 1, "c"), Summary { spans: 4, errors: 2, ..part(1, 10, 15, "a") }]
        );
    }
}
