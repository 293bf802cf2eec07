//! Who is measured, beyond the drivers and baselines of `cwasi-bench`: functions and native servers at ports.

pub mod door;
pub mod images;
pub mod load;
pub mod payload_server;
pub mod runwasi;
pub mod wasmedge_http;
