//! What moved in the last minutes: differences of the nodes' counters, added up for each edge.
//!
//! Invariants: a counter that fell has begun anew, so all that it has is new. The first numbers of a node are where
//! counting begins, not calls of now. A node that does not answer keeps what it counted until that is too old. The number
//! of series is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::exposition::{Counter, Sample, Series};

/// How far the numbers go back.
pub const WINDOW: Duration = Duration::from_secs(300);
/// Most series of all nodes together. One node has at most 2048 (docs/metrics.md).
pub const SERIES_MAX: usize = 100_000;
/// Longest name in bytes; Kubernetes has no longer one.
const NAME_MAX: usize = 253;

/// Counts of a series since a node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    /// Of requests and of responses.
    pub bytes: u64,
}

/// The counters of a node at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<Series, Counts>);

/// What an edge moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub embedded: u64,
    pub local: u64,
    pub networked: u64,
    /// Bytes of requests and responses of its networked calls.
    pub network_bytes: u64,
}

/// A Workflow: its namespace and name.
pub type WorkflowKey = (String, String);
/// An edge of a Workflow: caller and callee.
pub type EdgeKey = (String, String);
/// All edges with calls.
pub type MovedEdges = BTreeMap<WorkflowKey, BTreeMap<EdgeKey, Moved>>;

#[derive(Debug)]
struct Node {
    answered: Instant,
    counters: Counters,
}

#[derive(Debug)]
struct Round {
    at: Instant,
    moved: MovedEdges,
}

#[derive(Debug, Default)]
pub struct Window {
    /// By name.
    nodes: BTreeMap<String, Node>,
    rounds: VecDeque<Round>,
    /// When the first node answered for the first time.
    since: Option<Instant>,
}

impl Counters {
    /// Adds a line. Only calls of workflows' functions that reach one count.
    pub fn add(&mut self, sample: Sample) {
        let Sample { series, counter, value } = sample;
        let names = [&series.namespace, &series.workflow, &series.caller, &series.callee];
        let is_edge = names.iter().all(|name| (1..=NAME_MAX).contains(&name.len()));
        if !is_edge || !matches!(series.mode.as_str(), "embedded" | "local" | "networked") {
            return;
        }
        let counts = self.0.entry(series).or_default();
        let sum = match counter {
            Counter::Calls => &mut counts.calls,
            Counter::Bytes => &mut counts.bytes,
        };
        // Of several containerd namespaces, and of both directions.
        *sum = sum.saturating_add(value);
    }
}

impl Counts {
    /// What came since `before`.
    const fn since(self, before: Self) -> Self {
        if self.calls < before.calls || self.bytes < before.bytes {
            return self;
        }
        Self { calls: self.calls - before.calls, bytes: self.bytes - before.bytes }
    }
}

impl Moved {
    fn add(&mut self, mode: &str, counts: Counts) {
        let calls = match mode {
            "embedded" => &mut self.embedded,
            "local" => &mut self.local,
            _ => {
                self.network_bytes = self.network_bytes.saturating_add(counts.bytes);
                &mut self.networked
            }
        };
        *calls = calls.saturating_add(counts.calls);
    }

    fn merge(&mut self, other: Self) {
        let Self { embedded, local, networked, network_bytes } = other;
        self.embedded = self.embedded.saturating_add(embedded);
        self.local = self.local.saturating_add(local);
        self.networked = self.networked.saturating_add(networked);
        self.network_bytes = self.network_bytes.saturating_add(network_bytes);
    }

    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.embedded.saturating_add(self.local).saturating_add(self.networked)
    }
}

impl Window {
    /// Adds what the nodes answered at `now`. Returns false if there were more series than the bound.
    pub fn add(&mut self, now: Instant, answers: Vec<(String, Counters)>) -> bool {
        self.forget(now);
        let mut all = self.nodes.values().map(|node| node.counters.0.len()).sum::<usize>();
        let mut is_complete = true;
        let mut moved = MovedEdges::new();
        for (name, mut counters) in answers {
            let before = self.nodes.remove(&name);
            all -= before.as_ref().map_or(0, |node| node.counters.0.len());
            while all + counters.0.len() > SERIES_MAX {
                is_complete = false;
                counters.0.pop_last();
            }
            all += counters.0.len();
            if let Some(before) = &before {
                difference(&before.counters, &counters, &mut moved);
            }
            self.since.get_or_insert(now);
            self.nodes.insert(name, Node { answered: now, counters });
        }
        self.rounds.push_back(Round { at: now, moved });
        is_complete
    }

    /// Drops what is older than the window.
    fn forget(&mut self, now: Instant) {
        self.nodes.retain(|_, node| now.duration_since(node.answered) < WINDOW);
        while self.rounds.front().is_some_and(|round| now.duration_since(round.at) >= WINDOW) {
            self.rounds.pop_front();
        }
        if self.nodes.is_empty() {
            self.since = None;
        }
    }

    /// What moved within the window.
    #[must_use]
    pub fn moved(&self) -> MovedEdges {
        let mut sums = MovedEdges::new();
        for (workflow, edges) in self.rounds.iter().flat_map(|round| &round.moved) {
            let sums = sums.entry(workflow.clone()).or_default();
            for (edge, moved) in edges {
                sums.entry(edge.clone()).or_default().merge(*moved);
            }
        }
        sums
    }

    /// The time in which that moved; zero if no node has answered.
    #[must_use]
    pub fn covered(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.duration_since(since).min(WINDOW))
    }
}

fn difference(before: &Counters, now: &Counters, moved: &mut MovedEdges) {
    for (series, counts) in &now.0 {
        let before = before.0.get(series).copied().unwrap_or_default();
        let new = counts.since(before);
        if new == Counts::default() {
            continue;
        }
        let Series { namespace, workflow, caller, callee, mode } = series.clone();
        let edges = moved.entry((namespace, workflow)).or_default();
        edges.entry((caller, callee)).or_default().add(&mode, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_secs(15);

    fn sample(callee: &str, mode: &str, counter: Counter, value: u64) -> Sample {
        let [namespace, workflow, caller, callee, mode] =
            ["n", "shop", "front", callee, mode].map(str::to_owned);
        Sample { series: Series { namespace, workflow, caller, callee, mode }, counter, value }
    }

    /// The counters of a node: callee, mode, calls, and ten bytes for each call.
    fn counters(series: &[(&str, &str, u64)]) -> Counters {
        let mut counters = Counters::default();
        for (callee, mode, calls) in series {
            counters.add(sample(callee, mode, Counter::Calls, *calls));
            counters.add(sample(callee, mode, Counter::Bytes, calls.saturating_mul(4)));
            counters.add(sample(callee, mode, Counter::Bytes, calls.saturating_mul(6)));
        }
        counters
    }

    fn edge(window: &Window, callee: &str) -> Option<Moved> {
        let moved = window.moved();
        let edges = moved.get(&("n".to_owned(), "shop".to_owned()))?;
        edges.get(&("front".to_owned(), callee.to_owned())).copied()
    }

    #[test]
    fn differences_of_all_nodes_add_up() {
        let (mut window, start) = (Window::default(), Instant::now());
        let round = |window: &mut Window, number: u32, a: &[_], b: &[_]| {
            let answers = vec![("a".to_owned(), counters(a)), ("b".to_owned(), counters(b))];
            assert!(window.add(start + number * ROUND, answers));
        };
        round(&mut window, 0, &[("prices", "local", 1000)], &[("prices", "networked", 500)]);
        assert_eq!(edge(&window, "prices"), None, "what was before does not count");
        round(&mut window, 1, &[("prices", "local", 1007)], &[("prices", "networked", 503)]);
        // A series that was not there before has begun meanwhile.
        let b = [("prices", "networked", 503), ("stock", "embedded", 2)];
        round(&mut window, 2, &[("prices", "local", 1010)], &b);
        let prices = Moved { embedded: 0, local: 10, networked: 3, network_bytes: 30 };
        assert_eq!(edge(&window, "prices"), Some(prices));
        assert_eq!(edge(&window, "stock"), Some(Moved { embedded: 2, ..Moved::default() }));
        assert_eq!(window.covered(start + 2 * ROUND), 2 * ROUND);
    }

    #[test]
    fn a_node_that_begins_anew_counts_from_zero() {
        let (mut window, start) = (Window::default(), Instant::now());
        for (number, calls) in [900, 910, 4, 9].into_iter().enumerate() {
            let at = start + u32::try_from(number).unwrap() * ROUND;
            window.add(at, vec![("a".to_owned(), counters(&[("prices", "networked", calls)]))]);
        }
        let moved = Moved { networked: 10 + 4 + 5, network_bytes: 190, ..Moved::default() };
        assert_eq!(edge(&window, "prices"), Some(moved));
    }

    #[test]
    fn a_node_that_is_away_keeps_its_numbers_for_the_window() {
        let (mut window, start) = (Window::default(), Instant::now());
        let answer = |calls| vec![("a".to_owned(), counters(&[("prices", "local", calls)]))];
        window.add(start, answer(5));
        window.add(start + ROUND, answer(8));
        let moved = |local| Some(Moved { local, ..Moved::default() });
        window.add(start + 2 * ROUND, Vec::new());
        assert_eq!(edge(&window, "prices"), moved(3));
        // Back again: what it counted meanwhile is new.
        window.add(start + 3 * ROUND, answer(10));
        assert_eq!(edge(&window, "prices"), moved(5));
        let end = start + 3 * ROUND + WINDOW;
        window.add(end, Vec::new());
        assert_eq!((edge(&window, "prices"), window.covered(end)), (None, Duration::ZERO));
        // After that time it is a node as any other one that is seen first.
        window.add(end + ROUND, answer(500));
        assert_eq!((edge(&window, "prices"), window.nodes.len()), (None, 1));
    }

    #[test]
    fn what_is_no_edge_of_a_workflow_is_not_kept() {
        let mut counters = Counters::default();
        for mode in ["emit", "none", ""] {
            counters.add(sample("prices", mode, Counter::Calls, 1));
        }
        counters.add(sample("", "local", Counter::Calls, 1));
        counters.add(sample(&"x".repeat(NAME_MAX + 1), "local", Counter::Calls, 1));
        assert_eq!(counters, Counters::default());
    }

    #[test]
    fn series_are_bounded_and_counts_do_not_wrap() {
        let (mut window, now) = (Window::default(), Instant::now());
        let names: Vec<_> = (0..SERIES_MAX).map(|number| number.to_string()).collect();
        let full = |calls| {
            let series: Vec<_> = names.iter().map(|name| (name.as_str(), "local", calls)).collect();
            counters(&series)
        };
        assert!(window.add(now, vec![("a".to_owned(), full(1))]));
        let b = ("b".to_owned(), counters(&[("prices", "local", 1)]));
        assert!(!window.add(now, vec![b]));
        assert_eq!(window.nodes.values().map(|it| it.counters.0.len()).sum::<usize>(), SERIES_MAX);
        assert!(window.add(now, vec![("a".to_owned(), full(u64::MAX))]));
        let mut moved = edge(&window, "7").unwrap();
        moved.merge(moved);
        assert_eq!((moved.local, moved.calls()), (u64::MAX, u64::MAX));
    }
}
