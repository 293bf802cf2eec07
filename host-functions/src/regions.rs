//! The regions of one instance: pages of its linear memory that shared memory backs. Runs in a worker.
//!
//! A region is open for writing, sealed, or received from another function. The functions of [`crate::region_calls`]
//! change and describe regions; `request_dispatcher` sends sealed ones.
//!
//! Invariants:
//! - Regions do not overlap, and there are at most [`REGIONS_MAX`]. This bounds the shared memory of an instance that
//!   serves many requests.
//! - Sealed bytes never change: every callee of a region gets the same bytes.
//! - While leased memory is mapped, its token is kept here.

use std::ops::Range;

use cwasi_abi::{Errno, INLINE_MAX, REGIONS_MAX};
use cwasi_sys::segment::{LeaseToken, Segment};

use crate::GuestPtr;
use crate::pages::{PagedMemory, Pages, PagesError};

/// The regions of one instance.
#[derive(Debug)]
pub struct Regions<M: PagedMemory> {
    known: Vec<Region<M>>,
    source: M::Source,
    /// Where other memory has been mapped, whatever became of it; what lies between is in it.
    touched: Option<Range<u64>>,
}

#[derive(Debug)]
struct Region<M: PagedMemory> {
    pages: Pages,
    backing: Backing<M>,
}

#[derive(Debug)]
enum Backing<M: PagedMemory> {
    /// The guest writes into it.
    Open(M::Open),
    /// The first bytes, as they were when it was sealed.
    Sealed(Segment),
    /// A received payload or response.
    Received {
        segment: Segment,
        /// The guest sealed it when it had changed nothing; what it has changed since is its own.
        goes_on: bool,
        /// In the payload's block, which is the host's until the handler returns.
        in_payload: bool,
    },
    /// Received parts in the payload's block.
    Parts {
        /// Dropped when the pages map something else.
        _tokens: Vec<LeaseToken>,
    },
}

/// Whose block shared memory is mapped into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapTarget {
    /// The payload's, which the host has asked for.
    Payload,
    /// One of the guest's own, for a response.
    Own,
}

/// Why a region cannot change.
pub(crate) enum RegionFault {
    Errno(Errno),
    Pages(PagesError),
}

impl From<PagesError> for RegionFault {
    fn from(error: PagesError) -> Self {
        Self::Pages(error)
    }
}

impl<M: PagedMemory> Backing<M> {
    const fn is_in_payload(&self) -> bool {
        matches!(self, Self::Received { in_payload: true, .. } | Self::Parts { .. })
    }
}

impl<M: PagedMemory> Region<M> {
    /// True when its first `len` bytes, at `ptr`, can be sealed.
    fn is_open(&self, ptr: GuestPtr, len: u32) -> bool {
        let open = matches!(self.backing, Backing::Open(_));
        open && self.pages.start() == ptr && (1..=self.pages.byte_len()).contains(&len)
    }
}

/// False for what is copied wherever it lies.
const fn is_large(len: u64) -> bool {
    len > INLINE_MAX as u64
}

impl<M: PagedMemory> Default for Regions<M> {
    fn default() -> Self {
        Self::new(M::Source::default())
    }
}

impl<M: PagedMemory> Regions<M> {
    /// No regions yet; their memory will come from `source`.
    #[must_use]
    pub const fn new(source: M::Source) -> Self {
        Self { known: Vec::new(), source, touched: None }
    }

    /// Forgets all of them, as if there had never been any. Their pages are ordinary memory again, or gone.
    pub fn forget(&mut self) {
        self.known.clear();
        self.touched = None;
    }

    /// Makes all of them ordinary memory, zero, and forgets them; false if the system refused for one.
    #[must_use]
    pub fn clear(&mut self, memory: &mut M) -> bool {
        self.known.retain(|region| memory.clear(region.pages).is_err());
        self.known.is_empty()
    }

    /// Everything in linear memory where other memory has been mapped, even if it is gone again or that failed, and
    /// what lies between.
    #[must_use]
    pub fn touched(&self) -> Option<Range<u64>> {
        self.touched.clone()
    }

    /// Remembers that other memory will be mapped there.
    fn touch(&mut self, pages: Pages) {
        let start = u64::from(pages.start().0);
        let end = start + u64::from(pages.byte_len());
        let touched = self.touched.take().unwrap_or(start..end);
        self.touched = Some(touched.start.min(start)..touched.end.max(end));
    }

    /// Makes `pages` a region; the same pages again make it a new one.
    pub(crate) fn share(&mut self, memory: &mut M, pages: Pages) -> Result<(), RegionFault> {
        self.has_room(pages).map_err(RegionFault::Errno)?;
        self.touch(pages);
        let open = memory.share(&self.source, pages)?;
        self.set(pages, Backing::Open(open));
        Ok(())
    }

    /// Whether `pages` can be a region, or are one already.
    fn has_room(&self, pages: Pages) -> Result<(), Errno> {
        if self.known.iter().any(|region| region.pages == pages) {
            return Ok(());
        }
        if self.known.iter().any(|region| region.pages.overlap(pages)) {
            return Err(Errno::InvalidArgument);
        }
        if self.known.len() < REGIONS_MAX { Ok(()) } else { Err(Errno::TooManyHandles) }
    }

    fn set(&mut self, pages: Pages, backing: Backing<M>) {
        match self.known.iter_mut().find(|region| region.pages == pages) {
            Some(region) => region.backing = backing,
            None => self.known.push(Region { pages, backing }),
        }
    }

    /// Makes a region ordinary memory again.
    pub(crate) fn release(&mut self, memory: &mut M, pages: Pages) -> Result<(), RegionFault> {
        let index = self.known.iter().position(|region| region.pages == pages);
        let index = index.ok_or(RegionFault::Errno(Errno::InvalidArgument))?;
        memory.clear(pages)?;
        self.known.swap_remove(index);
        Ok(())
    }

    /// Seals an open region, or a received one that the guest has not changed: it can be sent on. False when there is
    /// neither; a changed one is copied when it is sent.
    ///
    /// # Errors
    /// When the system refuses: the bytes are still there, but no region.
    pub(crate) fn seal(
        &mut self,
        memory: &mut M,
        ptr: GuestPtr,
        len: u32,
    ) -> Result<bool, PagesError> {
        let here = self.known.iter_mut().filter(|region| region.pages.start() == ptr);
        for region in here {
            if let Backing::Received { segment, goes_on, .. } = &mut region.backing
                && segment.len() == u64::from(len)
            {
                *goes_on = memory.is_unchanged(&self.source, region.pages);
                return Ok(*goes_on);
            }
        }
        self.seal_open(memory, ptr, len)
    }

    /// Ends the writing of an open region; false when there is none. Errors as [`Self::seal`].
    fn seal_open(&mut self, memory: &mut M, ptr: GuestPtr, len: u32) -> Result<bool, PagesError> {
        let Some(index) = self.known.iter().position(|region| region.is_open(ptr, len)) else {
            return Ok(false);
        };
        let Region { pages, backing } = self.known.swap_remove(index);
        if let Backing::Open(open) = backing {
            let sealed = memory.seal(pages, open, len)?;
            self.set(pages, Backing::Sealed(sealed));
        }
        Ok(true)
    }

    /// The segment that the `len` bytes at `ptr` are, which no guest can change; `None` when these bytes are to be
    /// copied.
    #[must_use]
    pub fn sealed(&self, ptr: GuestPtr, len: u64) -> Option<&Segment> {
        let here = self.known.iter().filter(|region| region.pages.start() == ptr && is_large(len));
        let segments = here.filter_map(|region| match &region.backing {
            Backing::Sealed(segment) | Backing::Received { segment, goes_on: true, .. } => {
                Some(segment)
            }
            Backing::Open(_) | Backing::Received { .. } | Backing::Parts { .. } => None,
        });
        segments.into_iter().find(|segment| segment.len() == len)
    }

    /// [`Self::sealed`] of a handler's answer: a region that is still open is sealed for it.
    ///
    /// # Errors
    /// When the system refuses; the bytes are still there.
    pub fn answer(
        &mut self,
        memory: &mut M,
        ptr: GuestPtr,
        len: u32,
    ) -> Result<Option<&Segment>, PagesError> {
        if is_large(u64::from(len)) {
            self.seal_open(memory, ptr, len)?;
        }
        Ok(self.sealed(ptr, u64::from(len)))
    }

    /// Maps a segment at `ptr`, where `room` bytes are the guest's to overwrite; false when the bytes are to be copied
    /// there instead.
    pub fn map(
        &mut self,
        memory: &mut M,
        (ptr, room): (GuestPtr, u32),
        segment: &Segment,
        block: MapTarget,
    ) -> bool {
        let len = segment.len();
        if !is_large(len) || memory.slice(ptr, room).is_err() {
            return false;
        }
        let Some(pages) = Pages::holding(ptr, len).filter(|pages| pages.byte_len() <= room) else {
            return false;
        };
        if self.has_room(pages).is_err() || self.is_the_guests(pages) {
            return false;
        }
        self.touch(pages);
        // Where the system refuses, copying may still work.
        let mapped = memory.map(pages, segment.as_fd()).is_ok();
        if mapped {
            let segment = segment.clone();
            let in_payload = block == MapTarget::Payload || self.is_in_payload(pages);
            self.set(pages, Backing::Received { segment, goes_on: false, in_payload });
        }
        mapped
    }

    /// Maps each of `parts` (offset and segment) in the `len` bytes at `ptr`, which are the guest's to overwrite and
    /// become one region: it is released as a whole. Returns how many, from the first on; the bytes of the others are
    /// to be copied.
    pub fn map_parts<'a>(
        &mut self,
        memory: &mut M,
        (ptr, len): (GuestPtr, u32),
        parts: impl Iterator<Item = (u32, &'a Segment)>,
    ) -> usize {
        let Ok(block) = Pages::new(ptr, len) else { return 0 };
        let free = self.has_room(block).is_ok() && !self.is_the_guests(block);
        if !free || memory.slice(ptr, len).is_err() {
            return 0;
        }
        self.touch(block);
        // What another payload has left between the parts would lose its token.
        let known = self.known.iter().any(|region| region.pages == block);
        if known && memory.clear(block).is_err() {
            return 0;
        }
        let (mut mapped, mut tokens) = (0, Vec::new());
        for (offset, segment) in parts {
            let pages = block.inside(offset, segment.len());
            // Where the system refuses, copying may still work.
            if pages.is_none_or(|pages| memory.map(pages, segment.as_fd()).is_err()) {
                break;
            }
            mapped += 1;
            tokens.extend(segment.token().cloned());
        }
        if mapped > 0 {
            self.set(block, Backing::Parts { _tokens: tokens });
        }
        mapped
    }

    /// Unmaps the segments in the payload's block that the guest has not released: their pages become ordinary memory,
    /// zero.
    pub fn unmap_payload(&mut self, memory: &mut M) {
        // Where the system refuses, a segment stays mapped, and its token is kept.
        self.known.retain(|region| {
            !region.backing.is_in_payload() || memory.clear(region.pages).is_err()
        });
    }

    /// True when a payload is mapped at `pages`, in its block.
    fn is_in_payload(&self, pages: Pages) -> bool {
        self.known.iter().any(|region| region.pages == pages && region.backing.is_in_payload())
    }

    /// True for a region that the guest shared: a response that is read into it becomes part of it.
    fn is_the_guests(&self, pages: Pages) -> bool {
        let shared =
            |region: &Region<M>| matches!(region.backing, Backing::Open(_) | Backing::Sealed(_));
        self.known.iter().any(|region| region.pages == pages && shared(region))
    }
}

#[cfg(test)]
mod tests;
