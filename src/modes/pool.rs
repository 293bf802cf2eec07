//! A pool of segments that are reused: their pages exist already. They are lent to the functions of one trust group.
//!
//! Runs in workers; each has a pool of its own, charged to its cgroup. The pool decides which segments it keeps, lends
//! and evicts; [`ReusableSegment`] says what a lease is. A segment that is taken for writing is zero.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::huge::HUGE_PAGE;
use cwasi_sys::segment::{LentSegment, ReusableSegment, Segment, SegmentError};

pub use self::backing::WritableBacking;
pub use self::pooled::PooledSegment;
pub use self::received::{ReceivePools, TakenSegment};

/// Most segments of one pool, lent ones included.
const SEGMENTS_MAX: usize = 64;
/// Lengths of segments that are shorter than a huge page are multiples of this, in bytes.
const GRAIN: usize = 64 << 10;
/// Time from the last use until returned segments are cleared, in nanoseconds; doubles while some are lent.
const RECYCLE_NS: u64 = 5_000_000;
/// Time from the last use until free segments go back to the kernel, in nanoseconds.
const IDLE_NS: u64 = 5_000_000_000;

/// One worker's pool; clones share it.
#[derive(Clone, Debug)]
pub struct SegmentPool(Arc<Mutex<PoolState>>);

#[derive(Debug)]
struct PoolState {
    /// Segments may be taken for writing.
    lending: bool,
    bytes_max: usize,
    /// Of all segments, free, lent or in use.
    bytes: usize,
    segments: usize,
    /// Ordered by last use.
    free: Vec<ReusableSegment>,
    lent: Vec<LentSegment>,
    /// When a segment was last taken.
    used: u64,
    /// When maintenance is due, unless the pool is empty.
    due: u64,
}

impl PartialEq for SegmentPool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SegmentPool {}

impl SegmentPool {
    /// A pool of at most `bytes_max` bytes, empty.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (free, lent) = (Vec::new(), Vec::new());
        let (lending, bytes, segments, used, due) = (true, 0, 0, 0, 0);
        let state = PoolState { lending, bytes_max, bytes, segments, free, lent, used, due };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        // Nothing here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether [`Self::take`] returns segments: not while the answer may not be lent.
    pub fn set_lending(&self, lending: bool) {
        self.state().lending = lending;
    }

    /// Bytes of all segments, free and lent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state().bytes as u64
    }

    /// A segment of `len` zero bytes, to be written; `None` when the pool is used up or must not lend.
    #[must_use]
    pub fn take(&self, len: NonZeroUsize) -> Option<PooledSegment> {
        let mut segment = Some(self.state()).filter(|state| state.lending)?.take(len)?;
        segment.clear_for(len.get());
        Some(PooledSegment { segment: Some(segment), len: len.get(), pool: self.clone() })
    }

    /// A leased segment of these bytes, which may be lent whatever [`Self::set_lending`] said; `None` when the pool
    /// is used up.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Segment> {
        let len = NonZeroUsize::new(bytes.len())?;
        let mut state = self.state();
        let mut segment = state.take(len)?;
        segment.write(bytes);
        state.lend(segment, bytes.len()).ok()
    }

    /// Like [`Self::copy_of`], but only while [`Self::take`] returns segments.
    #[must_use]
    pub fn lendable_copy_of(&self, bytes: &[u8]) -> Option<Segment> {
        let lending = self.state().lending;
        if lending { self.copy_of(bytes) } else { None }
    }

    /// When to call [`Self::maintain`]; `None` while the pool is empty.
    #[must_use]
    pub fn maintenance_due(&self) -> Option<u64> {
        let state = self.state();
        (state.segments > 0).then_some(state.due)
    }

    /// Does the maintenance that is due: recycles returned segments until `interrupted`, and frees the pool after
    /// `IDLE_NS` without a use. Never waits for lent segments.
    pub fn maintain(&self, now: u64, interrupted: impl FnMut() -> bool) {
        if self.maintenance_due().is_none_or(|due| due > now) {
            return;
        }
        let idle_ns = now.saturating_sub(self.state().used);
        if idle_ns >= IDLE_NS {
            self.trim();
        } else if !self.recycle(interrupted) {
            return;
        }
        let mut state = self.state();
        let none_is_lent = state.lent.is_empty();
        let pause_ns = if none_is_lent { IDLE_NS } else { idle_ns.clamp(RECYCLE_NS, IDLE_NS) };
        // An idle pool is freed in time; segments that are lent for longer are freed when they return.
        let idle = state.used.saturating_add(IDLE_NS);
        let next = now.saturating_add(pause_ns);
        state.due = if idle > now { next.min(idle) } else { next };
    }

    /// Recycles and clears returned segments. Returns false when it was `interrupted`.
    fn recycle(&self, mut interrupted: impl FnMut() -> bool) -> bool {
        let mut state = self.state();
        state.reclaim();
        for segment in &mut state.free {
            while segment.dirty() > 0 {
                if interrupted() {
                    return false;
                }
                segment.clear_step();
            }
        }
        true
    }

    /// Frees every free segment. Returns true when the pool is empty.
    pub fn trim(&self) -> bool {
        let mut state = self.state();
        state.reclaim();
        while !state.free.is_empty() {
            state.evict();
        }
        state.segments == 0
    }
}

impl PoolState {
    /// A free segment of at least `len` bytes, or a new one.
    fn take(&mut self, len: NonZeroUsize) -> Option<ReusableSegment> {
        let wanted = rounded(len)?;
        self.used = monotonic_ns();
        self.due = self.used.saturating_add(RECYCLE_NS);
        self.reclaim();
        let fitting =
            |segment: &ReusableSegment| (wanted.get()..=wanted.get() * 2).contains(&segment.len());
        let free = self.free.iter().enumerate().filter(|(_, segment)| fitting(segment));
        if let Some((index, _)) = free.min_by_key(|(_, segment)| (segment.len(), segment.dirty())) {
            return Some(self.free.remove(index));
        }
        let fits = |state: &Self| {
            state.segments < SEGMENTS_MAX && state.bytes + wanted.get() <= state.bytes_max
        };
        while !fits(self) && !self.free.is_empty() {
            self.evict();
        }
        if !fits(self) {
            return None;
        }
        let segment = ReusableSegment::new(wanted).ok()?;
        self.bytes += segment.len();
        self.segments += 1;
        Some(segment)
    }

    /// Frees the segment that was not used for the longest time.
    fn evict(&mut self) {
        let segment = self.free.remove(0);
        self.forget(segment.len());
    }

    /// A segment of `len` bytes is none of the pool's any more.
    fn forget(&mut self, len: usize) {
        self.bytes -= len;
        self.segments -= 1;
    }

    fn lend(&mut self, segment: ReusableSegment, len: usize) -> Result<Segment, SegmentError> {
        let segment_len = segment.len();
        let lent = segment.lend(len);
        match lent {
            Ok((lent, segment)) => {
                self.lent.push(lent);
                Ok(segment)
            }
            Err(error) => {
                self.forget(segment_len);
                Err(error)
            }
        }
    }

    /// Takes back every segment whose tokens are closed.
    fn reclaim(&mut self) {
        LentSegment::reclaim(&mut self.lent, |segment| self.free.push(segment));
    }
}

/// Length of the segment for `len` bytes.
fn rounded(len: NonZeroUsize) -> Option<NonZeroUsize> {
    let grain = if len.get() < HUGE_PAGE { GRAIN } else { HUGE_PAGE };
    NonZeroUsize::new(len.get().checked_next_multiple_of(grain)?)
}

mod backing;
mod pooled;
mod received;
#[cfg(test)]
mod tests;
