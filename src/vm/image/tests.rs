//! Tests of images over memory like the engine's.

#![expect(unsafe_code, reason = "memory as the engine reserves it")]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use proptest::prelude::*;

use super::imaged::KEPT_MAX;
use super::*;

/// Pages of the reservation; the first [`FIRST`] of them are accessible when the image is taken.
const PAGES: usize = 600;
const FIRST: usize = 300;

/// A reservation as the engine makes it.
struct Reserved(NonNull<c_void>, usize);

impl Reserved {
    fn new() -> Self {
        let len = PAGES * page_len().unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY:
        // - a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(None, NonZeroUsize::new(len).unwrap(), ProtFlags::PROT_NONE, flags)
        };
        let mut this = Self(start.unwrap(), 0);
        this.grow(FIRST);
        this
    }

    fn grow(&mut self, pages: usize) {
        let len = NonZeroUsize::new(pages * page_len().unwrap()).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        let at = self.0.addr().checked_add(self.1);
        // SAFETY:
        // - inside the reservation, behind what is accessible.
        unsafe { mmap_anonymous(at, len, access, flags) }.unwrap();
        self.1 += len.get();
    }

    /// Maps other memory over some pages, as a payload's is.
    fn map(&mut self, pages: Range<usize>) {
        let page = page_len().unwrap();
        let Some(len) = NonZeroUsize::new(pages.len() * page) else { return };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        let at = self.0.addr().checked_add(pages.start * page);
        // SAFETY:
        // - inside what is accessible.
        unsafe { mmap_anonymous(at, len, access, flags) }.unwrap();
        self.bytes()[pages.start * page..pages.end * page].fill(0xcc);
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY:
        // - mapped, readable and writable.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), self.1) }
    }

    fn restore(
        &mut self,
        image: &MemoryImage,
        replaced: Range<usize>,
        populated: Option<&Populated>,
    ) {
        // SAFETY:
        // - our reservation, to which no reference exists.
        let imaged = unsafe { ImagedMemory::new(self.0.as_ptr().cast(), self.1, image) };
        imaged.unwrap().restore(replaced, populated).unwrap();
        self.1 = image.len();
    }

    fn settle(&mut self, image: &MemoryImage) {
        // SAFETY:
        // - our reservation, to which no reference exists.
        let imaged = unsafe { ImagedMemory::new(self.0.as_ptr().cast(), self.1, image) };
        imaged.unwrap().settle().unwrap();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY:
        // - our mapping, not used any more.
        unsafe { nix::sys::mman::munmap(self.0, PAGES * page_len().unwrap()) }.unwrap();
    }
}

fn writes(pages: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0..pages * page_len().unwrap(), any::<u8>()), 0..400)
}

#[test]
fn only_whole_pages_have_an_image() {
    assert!(MemoryImage::of(&[0; 100], 0, None).is_none());
    let image = MemoryImage::of(&[], 0, None).unwrap();
    assert!(image.is_empty());
    let mut memory = Reserved::new();
    let image = MemoryImage::of(memory.bytes(), 0, None).unwrap();
    assert_eq!((image.len(), image.pages.len()), (FIRST * page_len().unwrap(), 0));
    let bytes = memory.bytes();
    assert!(MemoryImage::of(&bytes[..bytes.len() - 1], 0, None).is_none());
    assert!(MemoryImage::of(&bytes[1..=page_len().unwrap()], 0, None).is_none());
}

#[test]
fn more_pages_than_are_kept_become_zero_too() {
    let mut memory = Reserved::new();
    memory.bytes()[7] = 7;
    let image = MemoryImage::of(memory.bytes(), usize::MAX, None).unwrap();
    for populated in [None, Populated::open()] {
        memory.bytes().fill(0xee);
        memory.restore(&image, 0..0, populated.as_ref());
        let now = MemoryImage::of(memory.bytes(), usize::MAX, None).unwrap();
        assert!(
            (now.len, now.pages, now.bytes)
                == (image.len, image.pages.clone(), image.bytes.clone())
        );
    }
    assert!(FIRST * page_len().unwrap() > KEPT_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_was_written_is_gone(
        first in writes(FIRST),
        later in prop::collection::vec(
            (writes(PAGES), 0..PAGES - FIRST, (0..FIRST, 0..FIRST), any::<bool>()), 1..4,
        ),
        asks: bool,
    ) {
        let populated = asks.then(Populated::open).flatten();
        let mut memory = Reserved::new();
        for (at, value) in first {
            memory.bytes()[at] = value;
        }
        let expected = memory.bytes().to_vec();
        let mut image = MemoryImage::of(memory.bytes(), usize::MAX, populated.as_ref()).unwrap();
        if asks && populated.as_ref().is_some_and(Populated::scans) {
            // Large ones become files.
            image.settle().unwrap();
        }
        memory.settle(&image);
        prop_assert!(memory.bytes() == expected);
        for (writes, growth, (start, pages), mapped) in later {
            if growth > 0 {
                memory.grow(growth);
            }
            let end = if mapped { start + pages } else { start };
            // What was appended goes anyway.
            memory.map(start..end.min(FIRST + growth));
            for (at, value) in writes {
                if let Some(byte) = memory.bytes().get_mut(at) {
                    *byte = value;
                }
            }
            let page = page_len().unwrap();
            memory.restore(&image, start * page..end * page, populated.as_ref());
            prop_assert!(memory.bytes() == expected);
        }
        memory.grow(PAGES - FIRST);
        prop_assert!(memory.bytes()[expected.len()..].iter().all(|byte| *byte == 0));
    }
}
