//! Tables 1 and 2 of the paper that CWASI follows: "CWASI: A WebAssembly Runtime Shim for Inter-function Communication
//! in the Serverless Edge-Cloud Continuum", SEC '23. Latencies in seconds on its authors' machine (Intel NUC, i5 at
//! 2.9 GHz, 8 GB): shown beside ours for orientation, never in a ratio.

/// Systems of the paper, in the order of [`Row::published`].
pub const SYSTEMS: [&str; 3] = ["CWASI", "WasmEdge", "OpenFaaS"];

/// One column of the paper's tables, as a row.
pub struct Row {
    /// The paper's experiment.
    pub experiment: &'static str,
    /// Published latency in seconds.
    pub published: [f64; 3],
    /// Our case that is nearest to it.
    pub case: &'static str,
}

const fn row(experiment: &'static str, case: &'static str, published: [f64; 3]) -> Row {
    Row { experiment, published, case }
}

/// Table 1: one function calls another.
pub const SEQUENTIAL: [Row; 2] = [
    row("2 MB", "local-2MiB-inplace-touch-none", [0.0051, 0.048, 0.0248]),
    row("100 MB", "local-100MiB-inplace-touch-none", [0.1436, 4.4324, 0.3681]),
];

/// Table 2: one function and many, 2 MB each.
pub const PARALLEL: [Row; 4] = [
    row("fan-out to 10", "fanout-2MiB-10-touch-none", [0.0045, 0.1931, 0.0441]),
    row("fan-out to 100", "fanout-2MiB-100-touch-none", [0.0066, 0.1950, 0.0169]),
    row("fan-in of 10", "fanin-2MiB-10-call", [0.0029, 0.1161, 0.0075]),
    row("fan-in of 100", "fanin-2MiB-100-call", [0.0032, 0.1170, 0.0079]),
];
