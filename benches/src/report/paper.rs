//! Tables 1 and 2 of the paper that CWASI follows: "CWASI: A WebAssembly Runtime Shim for Inter-function
//! Communication in the Serverless Edge-Cloud Continuum", SEC '23. They come from its authors' machine (Intel NUC, i5
//! at 2.9 GHz, 8 GB). The report shows them beside our results, never in a ratio.

/// Systems of the paper, in the order of its numbers here.
pub const SYSTEMS: [&str; 3] = ["CWASI", "WasmEdge", "OpenFaaS"];

/// One experiment of the paper's tables.
pub struct Row {
    pub experiment: &'static str,
    /// Published latency in seconds.
    pub latency: [f64; 3],
    /// Published requests in a second.
    pub throughput: [f64; 3],
    /// Our case that is nearest to its latency.
    pub case: &'static str,
    /// Our case whose duration says how many requests there are in a second.
    pub call: &'static str,
    /// Requests in one call of that case.
    pub requests: u32,
}

/// Table 1: one function calls another.
pub const SEQUENTIAL: [Row; 2] = [
    Row {
        experiment: "2 MB",
        latency: [0.0051, 0.048, 0.0248],
        throughput: [266.4535, 15.8323, 41.7240],
        case: "local-2MiB-inplace-touch-none",
        call: "local-2MiB-inplace-touch-none-call",
        requests: 1,
    },
    Row {
        experiment: "100 MB",
        latency: [0.1436, 4.4324, 0.3681],
        throughput: [6.9569, 0.1732, 2.7556],
        case: "local-100MiB-inplace-touch-none",
        call: "local-100MiB-inplace-touch-none-call",
        requests: 1,
    },
];

/// Table 2: one function and many, 2 MB each.
pub const PARALLEL: [Row; 4] = [
    Row {
        experiment: "fan-out to 10",
        latency: [0.0045, 0.1931, 0.0441],
        throughput: [203.7327, 4.3781, 59.8344],
        case: "fanout-2MiB-10-touch-none",
        call: "fanout-2MiB-10-touch-none-call",
        requests: 10,
    },
    Row {
        experiment: "fan-out to 100",
        latency: [0.0066, 0.1950, 0.0169],
        throughput: [211.2039, 4.9118, 61.2589],
        case: "fanout-2MiB-100-touch-none",
        call: "fanout-2MiB-100-touch-none-call",
        requests: 100,
    },
    Row {
        experiment: "fan-in of 10",
        latency: [0.0029, 0.1161, 0.0075],
        throughput: [298.9536, 8.6752, 127.3925],
        case: "fanin-2MiB-10-call",
        call: "fanin-2MiB-10-call",
        requests: 10,
    },
    Row {
        experiment: "fan-in of 100",
        latency: [0.0032, 0.1170, 0.0079],
        throughput: [314.2019, 8.5336, 130.8297],
        case: "fanin-2MiB-100-call",
        call: "fanin-2MiB-100-call",
        requests: 100,
    },
];
