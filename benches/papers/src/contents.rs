//! The tables and figures of the papers that show a measurement, and what a run has for it.

use crate::exhibit::Paper;

/// A table or figure.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Unique; names its files.
    pub id: &'static str,
    pub paper: Paper,
    /// As the paper names it.
    pub name: &'static str,
    pub about: &'static str,
    pub status: Status,
}

/// What a run has for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Our numbers beside the paper's.
    Measured,
    /// The same; the paper's number does not say what its text says, and why.
    Questioned(&'static str),
    /// Not measured, and why.
    Absent(&'static str),
}

impl Entry {
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !matches!(self.status, Status::Absent(_))
    }
}

const fn entry(
    paper: Paper,
    id: &'static str,
    name: &'static str,
    about: &'static str,
    status: Status,
) -> Entry {
    Entry { id, paper, name, about, status }
}

const CLOCK: &str = "The paper’s clock runs from one shim’s `connect` until the other shim has read the line: without \
    guest memory, JSON and the callee. Its WasmEdge baseline does not reproduce: 48 ms for 2 MB and 4.4 s for 100 MB \
    are 2.1 and 88 ms with its own artifact, whose server stops the clock before it has read the body. So there are \
    two clocks here: “delivery” ends when the callee has the payload, “call” when the caller has the answer of a \
    callee that has read all of it.";
const FAN_OUT: &str = "The artifact’s fan-out makes N calls one after the other, and its callee never runs. Its \
    latency is that of one call, so it is flat over N. Both ways are measured: “in turn” is the time of one of N calls \
    that follow each other, as the paper’s; “at a time” is the time until all N callees have the payload.";
const FAN_IN: &str = "The paper has no fan-in: it counts the answers of its fan-out. Both ways are measured: “in \
    turn” is one of N calls to one callee, one after the other; “at a time” is one callee that runs once with N payloads.";
const PLATFORM: &str = "The paper’s number is OpenWhisk’s `waitTime + initTime`. Here it is the time from the start of the container until \
    the response to `/init`, without OpenWhisk’s own part of it, on all sides.";
const WAIT: &str = "The thesis plots OpenWhisk’s `waitTime`, which ends before the action runs. The response time of `/run` \
    here includes the action; the sides differ only in who runs it.";
const PARTS: &str = "The thesis times two lines of WOW’s source each. Ours is the whole request, of which its parts are two.";

/// All of them, in the papers' order.
pub const CONTENTS: [Entry; 41] = {
    use Paper::{Cwasi, Operator, Thesis, Wow};
    use Status::{Absent, Measured, Questioned};
    const FORTY: &str = "Seven of the nine functions take 40 to 60 ms on both sides, and the cheapest four 40 ms: Linux delays an \
        acknowledgement for 40 ms, so these may be the network’s times and not the functions’. All sides here send at once \
        (TCP_NODELAY). The paper prints no means: they are its SD by its CV.";
    const POD: &str = "Times of pods need a cluster: `make bench-kubernetes` prints them.";
    [
        entry(
            Cwasi,
            "cwasi-figure-7a",
            "Figure 7a, Table 1",
            "latency of a sequence",
            Questioned(CLOCK),
        ),
        entry(
            Cwasi,
            "cwasi-figure-7b",
            "Figure 7b, Table 1",
            "throughput of a sequence",
            Questioned(CLOCK),
        ),
        entry(Cwasi, "cwasi-figure-7c-cpu", "Figure 7c, left", "CPU of a sequence", Measured),
        entry(Cwasi, "cwasi-figure-7c-ram", "Figure 7c, right", "RAM of a sequence", Measured),
        entry(
            Cwasi,
            "cwasi-figure-8a",
            "Figure 8a, Table 2",
            "latency of a fan-out, 2 MB",
            Questioned(FAN_OUT),
        ),
        entry(
            Cwasi,
            "cwasi-figure-8b",
            "Figure 8b, Table 2",
            "throughput of a fan-out, 2 MB",
            Questioned(FAN_OUT),
        ),
        entry(Cwasi, "cwasi-figure-8c-cpu", "Figure 8c, left", "CPU of a fan-out", Measured),
        entry(Cwasi, "cwasi-figure-8c-ram", "Figure 8c, right", "RAM of a fan-out", Measured),
        entry(
            Cwasi,
            "cwasi-figure-9a",
            "Figure 9a, Table 2",
            "latency of a fan-in, 2 MB",
            Questioned(FAN_IN),
        ),
        entry(
            Cwasi,
            "cwasi-figure-9b",
            "Figure 9b, Table 2",
            "throughput of a fan-in, 2 MB",
            Questioned(FAN_IN),
        ),
        entry(
            Wow,
            "wow-figure-4",
            "Figure 4b",
            "1 to 15 cold starts at a time",
            Questioned(PLATFORM),
        ),
        entry(
            Wow,
            "wow-figure-5",
            "Figure 5",
            "the runtimes’ own part of a cold start: /init",
            Measured,
        ),
        entry(Wow, "wow-compiling", "III-A4", "compiling and loading a module", Measured),
        entry(Wow, "wow-table-1", "Table I", "throughput of a mixed load", Measured),
        entry(Wow, "wow-io", "V-C2", "throughput of an I/O-bound load", Measured),
        entry(Wow, "wow-cpu", "V-C3", "throughput of a CPU-bound load", Measured),
        entry(Wow, "wow-node", "V-C3", "a sieve in AssemblyScript beside node.js", Measured),
        entry(
            Wow,
            "wow-figure-6",
            "Figure 6",
            "response times of an Azure-like mix, ECDF",
            Measured,
        ),
        entry(Wow, "wow-table-2", "Table II", "memory of a warm function", Measured),
        entry(Wow, "wow-code", "V-A3", "code size of an action", Measured),
        entry(Thesis, "thesis-lines", "Tables 1, 2, lines", "lines of the actions", Measured),
        entry(Thesis, "thesis-sizes", "Tables 1, 2, size", "sizes of the actions", Measured),
        entry(
            Thesis,
            "thesis-cold-starts",
            "Figures 5, 6, Tables 3, 4, 9",
            "1 to 15 cold starts at a time",
            Questioned(PLATFORM),
        ),
        entry(
            Thesis,
            "thesis-no-load",
            "Figures 7, 8, Tables 5, 6, 10",
            "1 to 15 requests at a time, hello",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-hashing",
            "Figures 9 to 12, Table 11",
            "1 to 15 requests at a time, hashing",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-mix-10",
            "Figures 13, 14, Tables 7, 8, 12",
            "mixed load 10/90",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-mix-25",
            "Figures 15 to 18, Table 13",
            "mixed load 25/75",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-mix-50",
            "Figures 19 to 22, Table 14",
            "mixed load 50/50",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-mix-75",
            "Figures 23 to 26, Table 15",
            "mixed load 75/25",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-mix-90",
            "Figures 27 to 30, Table 16",
            "mixed load 90/10",
            Questioned(WAIT),
        ),
        entry(
            Thesis,
            "thesis-capacity",
            "Table 17",
            "sleeping invocations until one fails",
            Measured,
        ),
        entry(
            Thesis,
            "thesis-capacity-cpu",
            "Figures 31, 32, left",
            "CPU during the capacity test",
            Measured,
        ),
        entry(
            Thesis,
            "thesis-capacity-ram",
            "Figures 31, 32, right",
            "memory during the capacity test",
            Measured,
        ),
        entry(
            Thesis,
            "thesis-init",
            "Table 18, Figure 33",
            "parts of a cold start: /init",
            Questioned(PARTS),
        ),
        entry(
            Thesis,
            "thesis-run",
            "Table 19, Figure 34",
            "parts of a warm start: the least /run",
            Questioned(PARTS),
        ),
        entry(
            Operator,
            "operator-serial",
            "Figures 2, 3, Table 3",
            "nine functions, one request after the other",
            Questioned(FORTY),
        ),
        entry(Operator, "operator-starts", "Figure 4", "instantiation", Questioned(POD)),
        entry(
            Operator,
            "operator-first",
            "Figure 5",
            "first request after the instantiation",
            Measured,
        ),
        entry(
            Operator,
            "operator-concurrent",
            "Figures 6, 7, Table 4",
            "nine functions, 5 clients at 5 requests a second",
            Measured,
        ),
        entry(Operator, "operator-images", "Table 5", "sizes of images", Measured),
        entry(
            Wow,
            "wow-raspberry-pi",
            "Figures 4a, 5, Table I",
            "the same on a Raspberry Pi",
            Absent("There is no Raspberry Pi here."),
        ),
    ]
};

/// What the papers, or their readers, would run beside ours and what this report does not have.
pub const ABSENT_SIDES: [(&str, &str); 6] = [
    (
        "OpenFaaS’ gateway and faasd",
        "their licence bounds who may run them and for how long; the native server stands alone in its container, or behind \
         of-watchdog, which favours it",
    ),
    ("Docker", "containerd and runc run native containers, without dockerd in front"),
    (
        "OpenWhisk",
        "its controller and invoker are not had here; all sides are measured at its protocol, `/init` and `/run`",
    ),
    ("wasmer, wamr", "no engines of CWASI"),
    (
        "Spin",
        "neither it nor its shim is built from registries alone; components run in `wasmtime serve` and in runwasi’s wasmtime \
         shim, whose engine is Spin’s, too",
    ),
    ("wash, Roadrunner", "this report does not know how to start them"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_entries_share_an_id_and_each_belongs_to_its_paper() {
        let ids: BTreeSet<&str> = CONTENTS.iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), CONTENTS.len());
        for entry in CONTENTS {
            let paper = serde_json::to_value(entry.paper).unwrap();
            assert!(entry.id.starts_with(paper.as_str().unwrap()), "{}", entry.id);
        }
    }

    #[test]
    fn the_page_lists_every_entry() {
        let page = include_str!("../../../docs/papers.md");
        for entry in CONTENTS {
            let paper = serde_json::to_value(entry.paper).unwrap();
            let begins =
                format!("| {}: {} | {} | ", paper.as_str().unwrap(), entry.name, entry.about);
            let mut command = String::new();
            if entry.is_measured() {
                command = format!("`EXHIBIT={}` |", entry.id);
            }
            let is_row = |line: &str| line.starts_with(&begins) && line.ends_with(&command);
            assert!(page.lines().any(is_row), "{begins}");
        }
    }
}
