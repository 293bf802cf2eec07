//! Memory that is brought back to what it was: an image of it, taken once, and the pages that were changed since.
//!
//! A small image is written as a whole each time. A large one is mapped into the memory (`file`), and what is written
//! are pages that were written since.
//!
//! Runs in workers. Whoever ran in the memory between image and restoration finds nothing of what it left there.

use std::hash::{Hash, Hasher};
use std::io;

use super::mapping::page_len;
use super::populated::{Populated, Wanted};

mod file;
mod imaged;
#[cfg(test)]
mod tests;

use file::ImageFile;
pub use imaged::Imaged;

/// Longest image that is written as a whole, in bytes.
const COPIED_MAX: usize = 256 << 10;

/// What was in a memory that is not zero, page by page.
#[derive(Debug)]
pub struct Image {
    /// Length of the memory in bytes.
    len: usize,
    page: usize,
    /// Numbers of the pages, ascending.
    pages: Vec<u32>,
    /// What is in them, one after the other; empty when that is in a file.
    bytes: Vec<u8>,
    file: Option<ImageFile>,
}

/// Of an image that is not in a file.
impl Hash for Image {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.len, &self.pages, &self.bytes).hash(hasher);
    }
}

impl Image {
    /// The image of `memory`, private and of nothing else than this process'; `None` unless that is whole pages, with at
    /// most `max` bytes in those that are not zero. `populated` is asked which pages there are: others need not be read.
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
            populated.each(start..start + memory.len(), Wanted::Present, |found| {
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

    /// Puts it into a file, if it is so large that it is to be mapped. Then [`Imaged::restore`] needs to ask which pages there are.
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
