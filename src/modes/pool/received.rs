//! Segments into which a shim receives payloads from other hosts, reused for the same reader. Runs in shims, and in
//! processes of the host that call functions.
//!
//! A reader is an instance of a function. It may keep a descriptor and read what comes later, so a segment is never
//! received into for another reader. Its own payloads it may read anyway. One that the reader has passed on to other
//! functions is not received into again ([`Segment::pass_on`]).

use std::collections::HashMap;
use std::mem;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::segment::{LentReceived, ReceivedSegment, Returned, Segment, SegmentError};

use super::{IDLE_NS, rounded};

/// Most segments of all readers, lent ones included.
const SEGMENTS_MAX: usize = 256;

/// Segments by their readers; clones share them.
#[derive(Clone, Debug)]
pub struct ReceivePools(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    bytes_max: usize,
    /// Of all segments, free, lent or being filled.
    bytes: usize,
    segments: usize,
    readers: HashMap<String, Reader>,
    /// Somebody calls [`ReceivePools::maintain`].
    is_maintained: bool,
}

#[derive(Debug, Default)]
struct Reader {
    /// Ordered by last use.
    free: Vec<ReceivedSegment>,
    lent: Vec<LentReceived>,
    /// When a segment was last taken or given back.
    used: u64,
}

/// Where a payload is received into.
enum Place {
    Free(ReceivedSegment),
    /// A new segment, which is counted already.
    New,
}

/// A segment that is filled for a reader; goes back to be filled again when it is dropped.
#[derive(Debug)]
pub struct TakenSegment {
    /// Only a value that is being consumed has none.
    segment: Option<ReceivedSegment>,
    len: usize,
    reader: String,
    pools: ReceivePools,
}

impl ReceivePools {
    /// Interval of [`Self::maintain`].
    pub const IDLE: Duration = Duration::from_nanos(IDLE_NS);

    /// At most `bytes_max` bytes of all readers.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (bytes, segments, readers, is_maintained) = (0, 0, HashMap::new(), false);
        Self(Arc::new(Mutex::new(State { bytes_max, bytes, segments, readers, is_maintained })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all segments, free and lent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state().bytes as u64
    }

    /// Room for a payload of `len` bytes for `reader`; `None` when there is none left, or no byte.
    #[must_use]
    pub fn take(&self, reader: &str, len: u64) -> Option<TakenSegment> {
        let len = NonZeroUsize::new(usize::try_from(len).ok()?)?;
        let wanted = rounded(len)?;
        let place = self.state().place(reader, wanted)?;
        let segment = match place {
            Place::Free(segment) => segment,
            // Others need not wait until it has its pages.
            Place::New => ReceivedSegment::new(wanted)
                .inspect_err(|_error| self.state().forget(wanted.get()))
                .ok()?,
        };
        let (segment, reader) = (Some(segment), reader.to_owned());
        Some(TakenSegment { segment, len: len.get(), reader, pools: self.clone() })
    }

    /// True if the caller has to call [`Self::maintain`] from now on, every [`Self::IDLE`], until that returns false.
    #[must_use]
    pub fn begin_maintenance(&self) -> bool {
        let mut state = self.state();
        !mem::replace(&mut state.is_maintained, true)
    }

    /// Frees segments of readers that received nothing for a while. False when none is left.
    #[must_use]
    pub fn maintain(&self, now: u64) -> bool {
        let mut state = self.state();
        state.reclaim();
        let is_idle = |reader: &Reader| now.saturating_sub(reader.used) >= IDLE_NS;
        let idle: Vec<_> = state.readers.values_mut().filter(|it| is_idle(it)).collect();
        let freed: Vec<_> = idle.into_iter().flat_map(|reader| reader.free.drain(..)).collect();
        for segment in &freed {
            state.forget(segment.len());
        }
        state.readers.retain(|_, reader| !(reader.free.is_empty() && reader.lent.is_empty()));
        state.is_maintained = state.segments > 0;
        state.is_maintained
    }
}

impl State {
    /// A segment of the reader, or the place for a new one; `None` when there is no place.
    fn place(&mut self, name: &str, wanted: NonZeroUsize) -> Option<Place> {
        let wanted = wanted.get();
        if let Some(reader) = self.readers.get_mut(name) {
            let passed_on = reader.reclaim();
            let fitting =
                |segment: &ReceivedSegment| (wanted..=wanted * 2).contains(&segment.len());
            let free = reader.free.iter().enumerate().filter(|(_, segment)| fitting(segment));
            let found = free.min_by_key(|(_, segment)| segment.len()).map(|(index, _)| index);
            let found = found.map(|index| reader.free.remove(index));
            reader.used = monotonic_ns();
            self.forget_all(&passed_on);
            if let Some(segment) = found {
                return Some(Place::Free(segment));
            }
        }
        if !self.fits(wanted) {
            self.reclaim();
        }
        // Then nothing is freed in vain.
        let free = self.readers.values().flat_map(|reader| &reader.free);
        let free: usize = free.map(ReceivedSegment::len).sum();
        if (self.bytes - free).saturating_add(wanted) > self.bytes_max {
            return None;
        }
        while !self.fits(wanted) {
            self.evict()?;
        }
        self.bytes += wanted;
        self.segments += 1;
        Some(Place::New)
    }

    const fn fits(&self, wanted: usize) -> bool {
        self.segments < SEGMENTS_MAX && self.bytes.saturating_add(wanted) <= self.bytes_max
    }

    /// Frees a segment of the reader that received nothing for the longest time; `None` when none is free.
    fn evict(&mut self) -> Option<()> {
        let readers = self.readers.values_mut().filter(|reader| !reader.free.is_empty());
        let segment = readers.min_by_key(|reader| reader.used)?.free.remove(0);
        self.forget(segment.len());
        Some(())
    }

    /// A segment of `len` bytes is none of these any more.
    const fn forget(&mut self, len: usize) {
        self.bytes -= len;
        self.segments -= 1;
    }

    fn forget_all(&mut self, lens: &[usize]) {
        for len in lens {
            self.forget(*len);
        }
    }

    /// Takes back every segment whose reader has done with it.
    fn reclaim(&mut self) {
        let passed_on: Vec<_> = self.readers.values_mut().flat_map(Reader::reclaim).collect();
        self.forget_all(&passed_on);
    }
}

impl Reader {
    /// Takes back segments; the lengths of those that were passed on, which are no more reused.
    fn reclaim(&mut self) -> Vec<usize> {
        let mut passed_on = Vec::new();
        for lent in mem::take(&mut self.lent) {
            if lent.returned() == Returned::PassedOn {
                passed_on.push(lent.len());
                continue;
            }
            match lent.take_back() {
                Ok(segment) => self.free.push(segment),
                Err(lent) => self.lent.push(lent),
            }
        }
        passed_on
    }

    fn lend(&mut self, lent: LentReceived) {
        self.lent.push(lent);
        self.used = monotonic_ns();
    }
}

impl TakenSegment {
    /// True when the whole payload is in it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.segment.as_ref().is_none_or(|segment| segment.filled() >= self.len)
    }

    /// Room for the next bytes of the payload, `most` at most.
    pub fn unfilled(&mut self, most: usize) -> &mut [u8] {
        let Some(segment) = &mut self.segment else { return &mut [] };
        let left = self.len.saturating_sub(segment.filled());
        segment.unfilled(left.min(most))
    }

    /// The first `count` bytes of the last [`Self::unfilled`] are there.
    pub fn advance(&mut self, count: usize) {
        if let Some(segment) = &mut self.segment {
            segment.advance(count);
        }
    }

    /// Lends what is filled to the reader.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn lend(mut self) -> Result<Segment, SegmentError> {
        let segment = self.segment.take().ok_or(SegmentError::Os {
            operation: "lending",
            len: self.len as u64,
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let len = segment.len();
        let lent = segment.lend();
        let mut state = self.pools.state();
        match lent {
            Ok((lent, segment)) => {
                state.readers.entry(mem::take(&mut self.reader)).or_default().lend(lent);
                Ok(segment)
            }
            Err(error) => {
                state.forget(len);
                Err(error)
            }
        }
    }
}

impl Drop for TakenSegment {
    fn drop(&mut self) {
        if let Some(mut segment) = self.segment.take() {
            segment.clear();
            let mut state = self.pools.state();
            let reader = state.readers.entry(mem::take(&mut self.reader)).or_default();
            reader.free.push(segment);
            reader.used = monotonic_ns();
        }
    }
}

#[cfg(test)]
mod tests;
