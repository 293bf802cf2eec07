//! What a fresh instance costs; prints a distribution, asserts nothing about time.

use std::time::{Duration, Instant};

use crate::harness::Case;
use crate::worker::Worker;

/// Requests per guest.
const REQUESTS: usize = 2000;

pub const CASES: &[Case] = &[("times_of_a_fresh_instance", times)];

fn times() {
    println!("{REQUESTS} requests of 64 bytes each; p50 / p99 in µs");
    println!("{:<10} {:>18} {:>18}", "guest", "instance ahead", "request + drop");
    for guest in ["actor", "server"] {
        let mut worker = Worker::new(guest, &[]);
        let mut ahead = Vec::with_capacity(REQUESTS);
        let mut request = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let started = Instant::now();
            worker.prepare();
            let ready = Instant::now();
            assert_eq!(worker.request(&[7; 64]).text().len(), 64);
            request.push(ready.elapsed());
            ahead.push(ready - started);
        }
        println!("{guest:<10} {:>18} {:>18}", shown(&mut ahead), shown(&mut request));
    }
}

fn shown(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let micros = |at: usize| times[at].as_secs_f64() * 1e6;
    format!("{:.1} / {:.1}", micros(REQUESTS / 2), micros(REQUESTS * 99 / 100))
}
