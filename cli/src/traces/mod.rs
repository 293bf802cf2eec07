//! Traces of this node: reads the span files of shims and of the host's callers, and builds the tree of each trace.
//!
//! - [`waterfall`]: a trace for a terminal; [`page`]: as one HTML page; [`summary`]: in one line.
//!
//! Invariant: the texts of spans come from sandboxes. They have no control characters here.

pub mod page;
pub mod summary;
pub mod waterfall;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cwasi_abi::Errno;
use cwasi_modes::ModeKind;
use cwasi_wire::trace::{RecordedSpan, Span, SpanId, SpanKind, TraceId};
use serde::{Deserialize, Serialize};

use crate::deployment::hops::bytes;

/// Names the newest trace.
pub const LAST: &str = "last";
/// Fewest digits by which a trace is named.
pub const PREFIX_MIN: usize = 4;
/// Spans that have not arrived after this time never will: a bound dropped them, or their function records none.
const ARRIVE_MAX: Duration = Duration::from_secs(10);
/// Deepest indentation. A sandbox may claim any parents, but not endless work.
const DEPTH_MAX: usize = 64;

/// A line of a span file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Span(Box<RecordedSpan>),
    Dropped { dropped: u64 },
}

/// Everything that was recorded on this node and is still kept.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The traces, the newest first.
    pub traces: Vec<Trace>,
    /// Spans that were not kept because of a bound.
    pub dropped: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    pub id: TraceId,
    /// Its spans in the order of the tree: parents before their children, earlier children first.
    pub spans: Vec<TreeSpan>,
}

/// A span and its place in the tree.
#[derive(Clone, Debug, Serialize)]
pub struct TreeSpan {
    /// Number of its ancestors that are recorded here.
    pub depth: usize,
    /// False if its parent is not recorded here: another node has it, or a bound dropped it.
    pub has_parent: bool,
    #[serde(flatten)]
    pub recorded: RecordedSpan,
}

impl TreeSpan {
    /// The function, or the module inside of its VM.
    #[must_use]
    pub fn service(&self) -> String {
        match self.recorded.span.module.as_str() {
            "" => self.recorded.service.clone(),
            module => format!("{module} in {}", self.recorded.service),
        }
    }

    /// What the span shows, for people.
    #[must_use]
    pub fn title(&self) -> String {
        let (service, peer) = (self.service(), &self.recorded.span.peer);
        match self.recorded.span.kind {
            SpanKind::Run if peer.is_empty() => format!("run {service}"),
            SpanKind::Run => format!("{service} runs {peer}"),
            SpanKind::Client => format!("{service} calls {peer}"),
            SpanKind::Producer => format!("{service} emits to {peer}"),
            SpanKind::Server => service,
        }
    }

    /// How it failed; `None` if it did not.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let span = &self.recorded.span;
        match (span.kind, span.errno) {
            (_, 0) => None,
            (SpanKind::Run, code) => Some(format!("exit code {code}")),
            (_, number) => {
                let errno = Errno::ALL.iter().find(|errno| errno.code() == number);
                Some(
                    errno
                        .map_or_else(|| format!("errno {number}"), |errno| errno.name().to_owned()),
                )
            }
        }
    }

    /// How it moved its data, for people.
    #[must_use]
    pub fn mode_and_path(&self) -> String {
        let Span { mode, path, .. } = &self.recorded.span;
        let separator = if path.is_empty() { "" } else { "/" };
        format!("{mode}{separator}{path}")
    }

    /// What it says beside its title, for people: terms and texts.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let recorded = &self.recorded;
        let span = &recorded.span;
        let caller = if span.kind == SpanKind::Server { span.peer.clone() } else { String::new() };
        let mut facts = vec![
            ("outcome", self.error().unwrap_or_else(|| "answered".to_owned())),
            ("mode", self.mode_and_path()),
            ("reason", span.reason.clone()),
            ("caller", caller),
        ];
        if span.request_bytes > 0 || span.response_bytes > 0 {
            facts.push(("request", bytes(span.request_bytes)));
            facts.push(("response", bytes(span.response_bytes)));
        }
        for phase in &span.phases {
            facts.push((phase.kind.name(), duration(phase.end_ns.saturating_sub(phase.start_ns))));
        }
        facts.extend([
            ("node", recorded.node.clone()),
            ("workflow", recorded.workflow.clone()),
            ("instance", recorded.instance.clone()),
            ("span", span.id.to_string()),
        ]);
        facts.retain(|(_, text)| !text.is_empty());
        facts
    }

    fn is_server(&self) -> bool {
        self.recorded.span.kind == SpanKind::Server
    }

    /// True for a call that a function of this node has answered.
    fn is_answered_here(&self) -> bool {
        let Span { kind, errno, mode, .. } = &self.recorded.span;
        let is_here = [ModeKind::Embedded, ModeKind::Local].iter().any(|it| it.name() == mode);
        *kind == SpanKind::Client && *errno == 0 && is_here
    }

    /// Length in nanoseconds.
    #[must_use]
    pub const fn duration_ns(&self) -> u64 {
        self.recorded.span.end_ns.saturating_sub(self.recorded.span.start_ns)
    }
}

impl Trace {
    /// Unix nanoseconds of its first moment.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.spans.iter().map(|it| it.recorded.span.start_ns).min().unwrap_or(0)
    }

    /// Length in nanoseconds, from its first to its last moment.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        let end = self.spans.iter().map(|it| it.recorded.span.end_ns).max().unwrap_or(0);
        end.saturating_sub(self.start_ns())
    }

    /// True when all spans of this node are there, or have had the time to arrive: shims write them once a second.
    #[must_use]
    pub fn has_settled(&self, now: SystemTime) -> bool {
        let end_ns = self.start_ns().saturating_add(self.duration_ns());
        let ended = UNIX_EPOCH + Duration::from_nanos(end_ns);
        if now.duration_since(ended).is_ok_and(|since| since > ARRIVE_MAX) {
            return true;
        }
        let served = self.spans.iter().filter(|it| it.is_server());
        let served: HashSet<_> = served.filter_map(|it| it.recorded.span.parent).collect();
        // Another node has the other side of a call over the network.
        let has_other_side =
            |it: &TreeSpan| !it.is_answered_here() || served.contains(&it.recorded.span.id);
        self.spans.iter().all(|it| it.has_parent && has_other_side(it))
    }

    /// What began it, as far as it is recorded here.
    #[must_use]
    pub fn title(&self) -> String {
        self.spans.first().map_or_else(String::new, TreeSpan::title)
    }

    /// Number of spans that failed.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.spans.iter().filter(|span| span.recorded.span.errno != 0).count()
    }
}

impl Recorded {
    /// The traces whose id begins with `prefix`, or the newest one for [`LAST`].
    #[must_use]
    pub fn find(&self, prefix: &str) -> Vec<&Trace> {
        if prefix == LAST {
            return self.traces.first().into_iter().collect();
        }
        self.traces.iter().filter(|trace| trace.id.to_string().starts_with(prefix)).collect()
    }
}

/// Reads all traces of state directories. What cannot be read is left out: shims write these files meanwhile.
#[must_use]
pub fn read(state_dirs: &[&Path]) -> Recorded {
    let mut spans = Vec::new();
    let mut dropped: u64 = 0;
    for file in state_dirs.iter().flat_map(|state_dir| files(state_dir)) {
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            match serde_json::from_str(line) {
                Ok(Line::Span(span)) => spans.push(*span),
                Ok(Line::Dropped { dropped: more }) => dropped = dropped.saturating_add(more),
                Err(_torn) => {}
            }
        }
    }
    Recorded { traces: assembled(spans), dropped }
}

/// The traces to which spans belong, the newest first.
#[must_use]
pub fn assembled(spans: impl IntoIterator<Item = RecordedSpan>) -> Vec<Trace> {
    let mut traces: HashMap<TraceId, Vec<RecordedSpan>> = HashMap::new();
    for span in spans {
        traces.entry(span.span.trace).or_default().push(printable(span));
    }
    let mut traces: Vec<_> =
        traces.into_iter().map(|(id, spans)| Trace { id, spans: tree(spans) }).collect();
    traces.sort_by_key(|trace| (std::cmp::Reverse(trace.start_ns()), trace.id));
    traces
}

/// The span files of running groups, ended groups and callers of the host.
fn files(state_dir: &Path) -> Vec<PathBuf> {
    let entries = |directory: PathBuf| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let groups = entries(state_dir.join("g"));
    let running = groups
        .iter()
        .flat_map(|group| ["spans.full.jsonl", "spans.jsonl"].map(|name| group.join(name)));
    running.chain(entries(state_dir.join("traces"))).collect()
}

/// Without characters that would move a terminal's cursor.
fn printable(mut span: RecordedSpan) -> RecordedSpan {
    let RecordedSpan { service, namespace, pod_namespace, workflow, instance, node, span: inner } =
        &mut span;
    let texts = [service, namespace, pod_namespace, workflow, instance, node];
    let Span { module, peer, mode, path, reason, tracestate, .. } = inner;
    let inner = [module, peer, mode, path, reason, tracestate];
    for text in texts.into_iter().chain(inner) {
        if text.contains(char::is_control) {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
    }
    span
}

/// The spans in the order of the tree. A span whose parent is missing begins a tree of its own, and so does each span of
/// a circle that sandboxes made up.
fn tree(mut spans: Vec<RecordedSpan>) -> Vec<TreeSpan> {
    spans.sort_by_key(|it| (it.span.start_ns, std::cmp::Reverse(it.span.end_ns), it.span.id));
    // An id that was reported twice counts once.
    let mut ids = HashSet::new();
    spans.retain(|it| ids.insert(it.span.id));
    let mut children: BTreeMap<Option<SpanId>, Vec<RecordedSpan>> = BTreeMap::new();
    for span in spans {
        let parent = span.span.parent.filter(|parent| ids.contains(parent));
        children.entry(parent).or_default().push(span);
    }
    let mut tree = Vec::new();
    let mut next: Vec<(usize, RecordedSpan)> = Vec::new();
    let push = |next: &mut Vec<(usize, RecordedSpan)>, depth, spans: Option<Vec<RecordedSpan>>| {
        next.extend(spans.into_iter().flatten().rev().map(|span| (depth, span)));
    };
    push(&mut next, 0, children.remove(&None));
    loop {
        while let Some((depth, recorded)) = next.pop() {
            push(&mut next, (depth + 1).min(DEPTH_MAX), children.remove(&Some(recorded.span.id)));
            let has_parent = recorded.span.parent.is_none() || depth > 0;
            tree.push(TreeSpan { depth, has_parent, recorded });
        }
        // What is left are circles.
        let Some((_, spans)) = children.pop_first() else { return tree };
        push(&mut next, 0, Some(spans));
    }
}

/// A duration for people.
#[must_use]
pub fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ns = ns as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns:.0}ns"),
        ns if ns < 1e6 => format!("{:.1}us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1}ms", ns / 1e6),
        ns => format!("{:.2}s", ns / 1e9),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use cwasi_testbed::span_line::SPAN_LINE;
    use cwasi_wire::trace::{Phase, PhaseKind};

    use super::*;

    /// A span of function `service` from `start` to `end` microseconds after an arbitrary moment.
    pub(crate) fn span(
        (id, parent): (u8, u8),
        kind: SpanKind,
        service: &str,
        (start, end): (u64, u64),
    ) -> RecordedSpan {
        let line: RecordedSpan = serde_json::from_str(SPAN_LINE).unwrap();
        let at = |us: u64| 1_700_000_000_000_000_000 + us * 1000;
        let (start_ns, end_ns) = (at(start), at(end));
        let span = Span {
            id: SpanId::from_bytes([id; 8]).unwrap(),
            parent: SpanId::from_bytes([parent; 8]),
            kind,
            peer: if kind == SpanKind::Run { String::new() } else { "peer".into() },
            start_ns,
            end_ns,
            phases: vec![Phase { kind: PhaseKind::Run, start_ns, end_ns }],
            ..line.span
        };
        RecordedSpan { service: service.into(), span, ..line }
    }

    /// A run, a call, and the call's other side.
    pub(crate) fn trace() -> Trace {
        let spans = vec![
            span((1, 0), SpanKind::Run, "a", (0, 100)),
            span((3, 2), SpanKind::Server, "b", (30, 70)),
            span((2, 1), SpanKind::Client, "a", (20, 80)),
        ];
        Trace { id: TraceId::from_bytes([7; 16]).unwrap(), spans: tree(spans) }
    }

    fn shape(spans: Vec<RecordedSpan>) -> Vec<(u8, usize, bool)> {
        let shown = |it: &TreeSpan| (it.recorded.span.id.bytes()[0], it.depth, it.has_parent);
        tree(spans).iter().map(shown).collect()
    }

    #[test]
    fn children_follow_their_parents_in_the_order_of_time() {
        let client = SpanKind::Client;
        let spans = vec![
            span((4, 1), client, "a", (50, 60)),
            span((2, 1), client, "a", (10, 20)),
            span((3, 2), client, "b", (12, 18)),
            span((1, 0), client, "a", (0, 100)),
            span((2, 1), client, "a", (10, 20)),
        ];
        assert_eq!(shape(spans), [(1, 0, true), (2, 1, true), (3, 2, true), (4, 1, true)]);
    }

    #[test]
    fn a_trace_settles_when_its_spans_are_there_or_had_the_time() {
        let ended = UNIX_EPOCH + Duration::from_nanos(trace().start_ns() + trace().duration_ns());
        let soon = ended + ARRIVE_MAX / 2;
        assert!(trace().has_settled(soon));
        for missing in 0..3 {
            let mut spans: Vec<_> = trace().spans.into_iter().map(|it| it.recorded).collect();
            for span in &mut spans {
                span.span.mode = ModeKind::Local.name().to_owned();
            }
            let without = |mut spans: Vec<RecordedSpan>| {
                spans.remove(missing);
                Trace { id: trace().id, spans: tree(spans) }
            };
            let partial = without(spans.clone());
            assert!(!partial.has_settled(soon), "{missing}");
            assert!(partial.has_settled(ended + 2 * ARRIVE_MAX));
            // The other side of a failed call, or of one to another node, may never come.
            for span in &mut spans {
                span.span.mode = ModeKind::Networked.name().to_owned();
            }
            assert_eq!(without(spans).has_settled(soon), missing == 2, "{missing}");
        }
    }

    #[test]
    fn missing_parents_and_circles_begin_trees() {
        let client = SpanKind::Client;
        let missing = vec![span((3, 9), client, "b", (1, 2)), span((4, 3), client, "c", (1, 2))];
        assert_eq!(shape(missing), [(3, 0, false), (4, 1, true)]);
        let circle = vec![
            span((1, 2), client, "a", (0, 1)),
            span((2, 1), client, "b", (0, 1)),
            span((3, 3), client, "c", (0, 1)),
        ];
        let mut found = shape(circle);
        found.sort_unstable();
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn files_of_running_and_ended_groups_and_of_callers_are_one_trace() {
        let dir = tempfile::tempdir().unwrap();
        let line = |span: &RecordedSpan| serde_json::to_string(span).unwrap();
        let (running, ended) = (dir.path().join("g/one"), dir.path().join("traces"));
        fs::create_dir_all(&running).unwrap();
        fs::create_dir_all(&ended).unwrap();
        let hostile = RecordedSpan {
            service: "b\u{1b}[2J".into(),
            ..span((2, 1), SpanKind::Server, "b", (1, 2))
        };
        let torn = "{\"service\":\"x\",\"na";
        let text = format!("{}\n{{\"dropped\":3}}\n{torn}", line(&hostile));
        fs::write(running.join("spans.jsonl"), text).unwrap();
        let first = span((1, 0), SpanKind::Client, "a", (0, 3));
        fs::write(ended.join("two.1.0.jsonl"), line(&first)).unwrap();
        let recorded = read(&[dir.path()]);
        assert_eq!((recorded.traces.len(), recorded.dropped), (1, 3));
        let services: Vec<_> = recorded.traces[0].spans.iter().map(TreeSpan::service).collect();
        assert_eq!(services, ["a", "b\u{fffd}[2J"]);
        assert_eq!(recorded.find("0707").len(), 1);
        assert!(recorded.find("08").is_empty());
        assert_eq!(recorded.find(LAST).len(), 1);
        assert_eq!(duration(recorded.traces[0].duration_ns()), "3.0us");
        assert!(read(&[Path::new("/nonexistent")]).traces.is_empty());
    }
}
