//! Restores memory to an earlier state: an image of it is taken once, and pages that were changed since are restored.
//!
//! A small image is copied back as a whole. A large one is mapped into the memory (`file`), and only the pages that
//! were written are restored.
//!
//! Runs in workers. Invariant: after the restoration, nothing is left of what was written after the image was taken.

use std::hash::{Hash, Hasher};
use std::io;

use cwasi_sys::mapping::page_len;
use cwasi_sys::populated::{PageFilter, Populated};

mod file;
mod imaged;
#[cfg(test)]
mod tests;

use file::ImageFile;
pub use imaged::ImagedMemory;

/// Longest image that is written as a whole, in bytes.
const COPIED_MAX: usize = 256 << 10;

/// The pages of a memory that were not zero.
#[derive(Debug)]
pub struct MemoryImage {
    /// Length of the memory in bytes.
    len: usize,
    page: usize,
    /// Numbers of the pages, ascending.
    pages: Vec<u32>,
    /// Their contents, one after the other; empty when they are in a file.
    bytes: Vec<u8>,
    file: Option<ImageFile>,
}

/// Of an image that is not in a file.
impl Hash for MemoryImage {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.len, &self.pages, &self.bytes).hash(hasher);
    }
}

impl MemoryImage {
    /// The image of `memory`, private and of nothing else than this process'; `None` unless that is whole pages, with
    /// at most `max` bytes in those that are not zero. `populated` is asked which pages there are: others need not be
    /// read.
    #[must_use]
    pub fn of(memory: &[u8], max: usize, populated: Option<&Populated>) -> Option<Self> {
        let page = page_len()?;
        let start = memory.as_ptr().addr();
        let whole = start.is_multiple_of(page) && memory.len().is_multiple_of(page);
        if !whole && !memory.is_empty() || u32::try_from(memory.len() / page).is_err() {
            return None;
        }
        let mut there = Vec::new();
        let asked = populated.map(|populated| {
            populated.each(start..start + memory.len(), PageFilter::Present, |found| {
                there.push(found.start - start..found.end - start);
            })
        });
        if !matches!(asked, Some(Ok(()))) {
            there = std::iter::once(0..memory.len()).collect();
        }
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        for at in there.into_iter().flat_map(|range| range.step_by(page)) {
            let content = &memory[at..at + page];
            if !is_zero(content) {
                if bytes.len() + page > max {
                    return None;
                }
                pages.push(u32::try_from(at / page).ok()?);
                bytes.extend_from_slice(content);
            }
        }
        bytes.shrink_to_fit();
        Some(Self { len: memory.len(), page, pages, bytes, file: None })
    }

    /// Puts it into a file, if it is so large that it is to be mapped. Then [`ImagedMemory::restore`] needs to ask
    /// which pages there are.
    ///
    /// # Errors
    /// When memory, mappings or descriptors run out.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.file.is_none() && self.bytes.len() > COPIED_MAX {
            self.file = ImageFile::new(self.page, &self.pages, &self.bytes)?;
            (self.pages, self.bytes) = (Vec::new(), Vec::new());
        }
        Ok(())
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True for a memory without bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}
