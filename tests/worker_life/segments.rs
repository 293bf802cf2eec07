//! What it costs to pass bytes from one process' memory into another's: sealed and leased segments, of small and of
//! huge pages, made in place and copied. Prints distributions, asserts nothing about time.
#![expect(unsafe_code, reason = "memory whose pages are replaced")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use cwasi_modes::pool::{SegmentPool, WritableBacking};
use cwasi_sys::huge::HUGE_PAGE;
use cwasi_sys::mapping::Window;
use cwasi_sys::segment::Segment;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::harness::Case;

/// Lengths in bytes, and how often each is measured.
const LENGTHS: [(usize, usize); 3] = [(128 << 10, 400), (2 << 20, 200), (100 << 20, 15)];
const PAGE: usize = 4096;

pub const CASES: &[Case] = &[("times_of_segments", times)];

fn times() {
    println!("µs, p50 / p99; one process, one after the other");
    println!(
        "{:>10} {:>6} {:>7} {:>20} {:>20} {:>20} {:>20} {:>20}",
        "bytes", "pages", "kind", "share", "write all", "seal", "map, touch none", "read all"
    );
    for small_pages in [false, true] {
        nix::sys::prctl::set_thp_disable(small_pages).unwrap();
        for (len, rounds) in LENGTHS {
            for pool in [None, Some(SegmentPool::new(256 << 20))] {
                in_place(len, rounds, small_pages, pool.as_ref());
            }
        }
        // Once this kernel's huge pages were refused, a process asks no more: so all with them comes first.
        println!(
            "{:>10} {:>6} {:>20} {:>20} copied, then mapped and read",
            "bytes", "pages", "fresh", "pool"
        );
        for (len, rounds) in LENGTHS {
            copied(len, rounds, small_pages);
        }
    }
}

const fn name(small_pages: bool) -> &'static str {
    if small_pages { "small" } else { "huge" }
}

/// Memory as an instance has it, at the start of a huge page.
struct Memory(NonNull<u8>, usize);

impl Memory {
    fn new(len: usize) -> Self {
        let size = NonZeroUsize::new(len + HUGE_PAGE).unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - a fresh mapping at an address of the kernel's choice; it stays until the process ends.
        let start = unsafe { mmap_anonymous(None, size, protection, flags) }.unwrap();
        let skipped = start.addr().get().next_multiple_of(HUGE_PAGE) - start.addr().get();
        // SAFETY:
        // - less than the huge page that was mapped in addition.
        Self(unsafe { start.byte_add(skipped) }.cast(), len)
    }

    fn window(&self) -> Window {
        // SAFETY:
        // - our own mapping, to which no reference exists.
        unsafe { Window::new(self.0.as_ptr(), self.1) }.unwrap()
    }

    fn write(&self) {
        // SAFETY:
        // - inside the mapping, which is writable.
        unsafe { self.0.write_bytes(7, self.1) };
    }

    fn read(&self) -> usize {
        let mut sum = 0;
        for at in (0..self.1).step_by(size_of::<u64>()) {
            // SAFETY:
            // - inside the mapping, aligned; whatever is there is a number.
            sum ^= unsafe { self.0.byte_add(at).cast::<usize>().read_volatile() };
        }
        sum
    }
}

fn in_place(len: usize, rounds: usize, small_pages: bool, pool: Option<&SegmentPool>) {
    let (producer, consumer) = (Memory::new(len), Memory::new(len));
    let mut times: [Vec<Duration>; 5] = Default::default();
    for _ in 0..rounds {
        let mut laps = Laps::new(&mut times);
        let open = WritableBacking::share(&mut producer.window(), pool).unwrap();
        laps.next();
        producer.write();
        laps.next();
        let segment = open.seal(&mut producer.window(), len).unwrap();
        laps.next();
        consumer.window().map_sealed(segment.as_fd()).unwrap();
        laps.next();
        consumer.read();
        laps.next();
        for memory in [&producer, &consumer] {
            memory.window().clear().unwrap();
        }
    }
    let kind = if pool.is_some() { "leased" } else { "sealed" };
    let shown = times.each_mut().map(|times| percentiles(times));
    let [share, write, seal, map, read] = shown;
    let pages = name(small_pages);
    println!(
        "{len:>10} {pages:>6} {kind:>7} {share:>20} {write:>20} {seal:>20} {map:>20} {read:>20}"
    );
}

fn copied(len: usize, rounds: usize, small_pages: bool) {
    let (bytes, consumer) = (vec![7; len], Memory::new(len));
    let pool = SegmentPool::new(256 << 20);
    let mut times: [Vec<Duration>; 2] = Default::default();
    for _ in 0..rounds {
        for (kind, times) in times.iter_mut().enumerate() {
            let started = Instant::now();
            let segment = match kind {
                0 => Segment::copy_of(&bytes).unwrap(),
                _ => pool.copy_of(&bytes).unwrap(),
            };
            consumer.window().map_sealed(segment.as_fd()).unwrap();
            consumer.read();
            times.push(started.elapsed());
            consumer.window().clear().unwrap();
        }
    }
    let [fresh, pooled] = times.each_mut().map(|times| percentiles(times));
    println!("{len:>10} {:>6} {fresh:>20} {pooled:>20}", name(small_pages));
    assert_eq!(len % PAGE, 0, "whole pages are mapped");
}

/// One measured step after the other.
struct Laps<'a> {
    times: std::slice::IterMut<'a, Vec<Duration>>,
    last: Instant,
}

impl<'a> Laps<'a> {
    fn new(times: &'a mut [Vec<Duration>]) -> Self {
        Self { times: times.iter_mut(), last: Instant::now() }
    }

    fn next(&mut self) {
        let now = Instant::now();
        if let Some(times) = self.times.next() {
            times.push(now - self.last);
        }
        self.last = Instant::now();
    }
}

fn percentiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let micros = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    format!("{:.1} / {:.1}", micros(50), micros(99))
}
