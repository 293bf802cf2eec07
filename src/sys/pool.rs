//! A pool of segments that are reused: their pages exist already. They are lent to the functions of one trust group.
//!
//! Runs in workers; each has a pool of its own, charged to its cgroup. A lease comes with a *token*, the write end of a
//! pipe. Every reader of the bytes keeps a copy of it open. When the last copy is closed, also by the death of its
//! holder, the pool's end of the pipe hangs up, and the pool can reuse the segment.
//!
//! Invariants:
//! - Only the pool's own mapping writes to a segment (`F_SEAL_FUTURE_WRITE`): no receiver of the descriptor can.
//! - Behind the bytes of a lease, the segment is zero. A segment that is taken for writing is zero.
//! - The pool writes to no segment while one of its tokens is open.
#![expect(unsafe_code, reason = "writes to pages that others map")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe2;

use super::clock::monotonic_ns;
use super::huge::{Aligned, HUGE_PAGE};
use super::segment::{Segment, SegmentError};

pub use self::pooled::PooledSegment;

/// Most segments of one pool, lent ones included.
pub const SEGMENTS_MAX: usize = 64;
/// Lengths of segments that are shorter than a huge page are multiples of this, in bytes.
const GRAIN: usize = 64 << 10;
/// Bytes that are cleared in one step; between steps maintenance can be interrupted.
const STEP: usize = 4 << 20;
/// Time from the last use until returned segments are cleared, in nanoseconds; doubles while some are lent.
const RECYCLE_NS: u64 = 5_000_000;
/// Time from the last use until free segments go back to the kernel, in nanoseconds.
pub const IDLE_NS: u64 = 5_000_000_000;

/// Seals of a segment that is lent.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE)
    .union(SealFlag::F_SEAL_SEAL);

/// One worker's pool; clones share it.
#[derive(Clone, Debug)]
pub struct SegmentPool(Arc<Mutex<Stock>>);

#[derive(Debug)]
struct Stock {
    /// Segments may be taken for writing.
    lending: bool,
    bytes_max: usize,
    /// Of all segments, free, lent or in use.
    bytes: usize,
    segments: usize,
    /// Ordered by last use.
    free: Vec<PoolSegment>,
    lent: Vec<LentSegment>,
    /// When a segment was last taken.
    used: u64,
    /// When maintenance is due, unless the pool is empty.
    due: u64,
}

/// A free segment of the pool.
#[derive(Debug)]
struct PoolSegment {
    file: File,
    map: Aligned,
    len: usize,
    /// Behind these bytes all are zero.
    dirty: usize,
}

#[derive(Debug)]
struct LentSegment {
    piece: PoolSegment,
    /// Hangs up when the last copy of the token is closed.
    token_read: OwnedFd,
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
        let stock = Stock { lending, bytes_max, bytes, segments, free, lent, used, due };
        Self(Arc::new(Mutex::new(stock)))
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // Nothing here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether [`Self::take`] returns segments: not while the answer may not be lent.
    pub fn set_lending(&self, lending: bool) {
        self.stock().lending = lending;
    }

    /// Bytes of all segments, free and lent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stock().bytes as u64
    }

    /// A segment of `len` zero bytes, to be written; `None` when the pool is used up or must not lend.
    #[must_use]
    pub fn take(&self, len: NonZeroUsize) -> Option<PooledSegment> {
        let mut piece = Some(self.stock()).filter(|stock| stock.lending)?.take(len)?;
        while piece.clean(0, STEP) {}
        piece.dirty = len.get();
        Some(PooledSegment { piece: Some(piece), len: len.get(), pool: self.clone() })
    }

    /// A leased segment of these bytes, which may be lent whatever [`Self::set_lending`] said; `None` when the pool
    /// is used up.
    #[must_use]
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Segment> {
        let len = NonZeroUsize::new(bytes.len())?;
        let mut stock = self.stock();
        let mut piece = stock.take(len)?;
        piece.write(bytes);
        stock.lend(piece, bytes.len()).ok()
    }

    /// When to call [`Self::maintain`]; `None` while the pool is empty.
    #[must_use]
    pub fn maintenance_due(&self) -> Option<u64> {
        let stock = self.stock();
        (stock.segments > 0).then_some(stock.due)
    }

    /// Does the maintenance that is due: recycles returned segments until `interrupted`, and frees the pool after
    /// [`IDLE_NS`] without a use. Never waits for lent segments.
    pub fn maintain(&self, now: u64, interrupted: impl FnMut() -> bool) {
        if self.maintenance_due().is_none_or(|due| due > now) {
            return;
        }
        let idle_ns = now.saturating_sub(self.stock().used);
        if idle_ns >= IDLE_NS {
            self.trim();
        } else if !self.recycle(interrupted) {
            return;
        }
        let mut stock = self.stock();
        let none_is_lent = stock.lent.is_empty();
        let pause_ns = if none_is_lent { IDLE_NS } else { idle_ns.clamp(RECYCLE_NS, IDLE_NS) };
        // An idle pool is freed in time; segments that are lent for longer are freed when they return.
        let idle = stock.used.saturating_add(IDLE_NS);
        let next = now.saturating_add(pause_ns);
        stock.due = if idle > now { next.min(idle) } else { next };
    }

    /// Recycles and clears returned segments. Returns false when it was `interrupted`.
    fn recycle(&self, mut interrupted: impl FnMut() -> bool) -> bool {
        let mut stock = self.stock();
        stock.reclaim();
        for piece in &mut stock.free {
            while piece.dirty > 0 {
                if interrupted() {
                    return false;
                }
                piece.clean(0, STEP);
            }
        }
        true
    }

    /// Frees every free segment. Returns true when the pool is empty.
    pub fn trim(&self) -> bool {
        let mut stock = self.stock();
        stock.reclaim();
        while !stock.free.is_empty() {
            stock.evict();
        }
        stock.segments == 0
    }
}

impl Stock {
    /// A free segment of at least `len` bytes, or a new one.
    fn take(&mut self, len: NonZeroUsize) -> Option<PoolSegment> {
        let wanted = rounded(len)?;
        self.used = monotonic_ns();
        self.due = self.used.saturating_add(RECYCLE_NS);
        self.reclaim();
        let fitting = |piece: &PoolSegment| (wanted.get()..=wanted.get() * 2).contains(&piece.len);
        let free = self.free.iter().enumerate().filter(|(_, piece)| fitting(piece));
        if let Some((index, _)) = free.min_by_key(|(_, piece)| (piece.len, piece.dirty)) {
            return Some(self.free.remove(index));
        }
        let fits = |stock: &Self| {
            stock.segments < SEGMENTS_MAX && stock.bytes + wanted.get() <= stock.bytes_max
        };
        while !fits(self) && !self.free.is_empty() {
            self.evict();
        }
        if !fits(self) {
            return None;
        }
        let piece = PoolSegment::new(wanted).ok()?;
        self.bytes += piece.len;
        self.segments += 1;
        Some(piece)
    }

    /// Frees the segment that was not used for the longest time.
    fn evict(&mut self) {
        let piece = self.free.remove(0);
        self.forget(piece.len);
    }

    /// A segment of `len` bytes is none of the pool's any more.
    fn forget(&mut self, len: usize) {
        self.bytes -= len;
        self.segments -= 1;
    }

    fn lend(&mut self, piece: PoolSegment, len: usize) -> Result<Segment, SegmentError> {
        let piece_len = piece.len;
        let lent = piece.lend(len);
        match lent {
            Ok((lent, segment)) => {
                self.lent.push(lent);
                Ok(segment)
            }
            Err(error) => {
                self.forget(piece_len);
                Err(error)
            }
        }
    }

    /// Takes back every segment whose tokens are closed.
    fn reclaim(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        let tokens = self.lent.iter().map(|lent| lent.token_read.as_fd());
        let mut ends: Vec<_> = tokens.map(|token| PollFd::new(token, PollFlags::empty())).collect();
        if !any_ready(&mut ends) {
            return;
        }
        let ended = |end: &PollFd<'_>| {
            end.revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
        };
        let ended: Vec<bool> = ends.iter().map(ended).collect();
        for index in (0..ended.len()).rev().filter(|index| ended[*index]) {
            self.free.push(self.lent.remove(index).piece);
        }
    }
}

/// True when one of them is ready now.
fn any_ready(watched: &mut [PollFd<'_>]) -> bool {
    loop {
        match poll(watched, PollTimeout::ZERO) {
            Err(Errno::EINTR) => {}
            polled => return matches!(polled, Ok(1..)),
        }
    }
}

/// Length of the segment for `len` bytes.
fn rounded(len: NonZeroUsize) -> Option<NonZeroUsize> {
    let grain = if len.get() < HUGE_PAGE { GRAIN } else { HUGE_PAGE };
    NonZeroUsize::new(len.get().checked_next_multiple_of(grain)?)
}

impl PoolSegment {
    fn new(len: NonZeroUsize) -> Result<Self, SegmentError> {
        let os = |operation| {
            let len = len.get() as u64;
            move |source: std::io::Error| SegmentError::Os { operation, len, source }
        };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file =
            memfd_create(c"cwasi-pool", flags).map_err(|errno| os("memfd_create")(errno.into()))?;
        let file = File::from(file);
        file.set_len(len.get() as u64).map_err(os("ftruncate"))?;
        let map = Aligned::of(&file, len)
            .ok_or_else(|| os("mmap")(std::io::ErrorKind::OutOfMemory.into()))?;
        map.take_huge_pages();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))
            .map_err(|errno| os("F_ADD_SEALS")(errno.into()))?;
        Ok(Self { file, map, len: len.get(), dirty: 0 })
    }

    /// Makes up to `step` of the bytes from `from` on zero, the last ones first; false when they all are.
    fn clean(&mut self, from: usize, step: usize) -> bool {
        if self.dirty <= from {
            return false;
        }
        let start = from.max(self.dirty.saturating_sub(step));
        // SAFETY:
        // - inside the mapping: `dirty` is never more than its length.
        // - only the pool writes there; readers keep a token, and this segment is not lent.
        unsafe { self.map.start().byte_add(start).write_bytes(0, self.dirty - start) };
        self.dirty = start;
        true
    }

    /// Makes `bytes` the only ones that are not zero.
    fn write(&mut self, bytes: &[u8]) {
        while self.clean(bytes.len(), STEP) {}
        // SAFETY:
        // - the segment has room for them: it was taken for this length.
        // - as for `clean`; `bytes` are no mapping of a segment that is free.
        unsafe { self.map.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.dirty = bytes.len();
    }

    fn lend(mut self, len: usize) -> Result<(LentSegment, Segment), SegmentError> {
        while self.clean(len, STEP) {}
        let os = |operation| {
            move |source: std::io::Error| SegmentError::Os { operation, len: len as u64, source }
        };
        let (token_read, token) =
            pipe2(OFlag::O_CLOEXEC).map_err(|errno| os("pipe2")(errno.into()))?;
        let file = self.file.try_clone().map_err(os("dup"))?;
        let segment = Segment::leased(file, len as u64, Arc::new(token));
        Ok((LentSegment { piece: self, token_read }, segment))
    }
}

mod pooled;
#[cfg(test)]
mod tests;
