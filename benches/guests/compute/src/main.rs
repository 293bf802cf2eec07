//! A primary that computes. Runs inside a guest.

use std::io::{stdin, stdout};

fn main() -> std::io::Result<()> {
    cwasi_bench_protocol::serve(stdin().lock(), stdout(), bench_compute::perform)
}
