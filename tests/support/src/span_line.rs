//! A line of a span file, as a shim writes it: for tests of what reads such lines.

/// The span of a call's callee: 10 µs, of which its handler ran 7 µs.
pub const SPAN_LINE: &str = r#"{"service":"b","namespace":"n","workflow":"w","instance":"1","node":"h","span":{
    "trace":"07070707070707070707070707070707","id":"0202020202020202","parent":"0303030303030303","kind":"server",
    "peer":"a","mode":"local","reason":"callee on this host","start_ns":1700000000000000000,
    "end_ns":1700000000000010000,"request_bytes":4,"response_bytes":5,"errno":0,
    "phases":[{"kind":"run","start_ns":1700000000000002000,"end_ns":1700000000000009000}],"tracestate":"a=1"}}"#;
