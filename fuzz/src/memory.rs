//! Bounds what a decoder allocates.
//!
//! The allocator counts. [`bounded`] ends the process when more is allocated at a time than it allows, so that
//! libFuzzer keeps the input. Without this, a length that is taken from the input shows only where the machine runs out
//! of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that are allocated now.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Most that may be.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Bytes that any decoder may take: tables of its parser, messages of its errors.
const BASE: usize = 256 << 10;

/// What the protobuf crate reserves for a field before it checks whether so many bytes follow: its
/// READ_RAW_BYTES_MAX_ALLOC.
pub const PROTOBUF: usize = 10_000_000;
/// What the validator of modules reserves for a section before it reads it: a million imports of 160 bytes, in a table
/// of the next power of two.
pub const MODULE: usize = 320 << 20;
/// What the DNS crate reserves for four sections of 65,535 records.
pub const DNS: usize = 32 << 20;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(len: usize) {
    let live = LIVE.fetch_add(len, Relaxed).saturating_add(len);
    let limit = LIMIT.load(Relaxed);
    // A panic's own message allocates, with a lock held that the one below takes.
    if live > limit && !std::thread::panicking() {
        // The message may allocate, too.
        LIMIT.store(usize::MAX, Relaxed);
        let place = std::backtrace::Backtrace::force_capture();
        eprintln!("{len} bytes more are {} bytes above the limit\n{place}", live - limit);
        std::process::abort();
    }
}

#[expect(unsafe_code, reason = "an allocator is")]
// SAFETY:
// - everything is the system's allocator's; counting never unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY:
        // - the caller's conditions are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY:
        // - as above: every block is the system's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Runs `decode`, which may take [`BASE`] bytes at a time, and `factor` for each of the `input`'s.
pub fn bounded<T>(input: &[u8], factor: usize, decode: impl FnOnce() -> T) -> T {
    within(BASE + factor * input.len(), decode)
}

/// [`bounded`], beside what a crate reserves by a number that it has read. None of that is touched before more is read.
pub fn bounded_beside<T>(
    reserved: usize,
    input: &[u8],
    factor: usize,
    decode: impl FnOnce() -> T,
) -> T {
    within(reserved + BASE + factor * input.len(), decode)
}

/// [`bounded`] by a number of bytes, for what is compressed.
pub fn within<T>(room: usize, decode: impl FnOnce() -> T) -> T {
    LIMIT.store(LIVE.load(Relaxed).saturating_add(room), Relaxed);
    let result = decode();
    LIMIT.store(usize::MAX, Relaxed);
    result
}
