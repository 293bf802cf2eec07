//! The allocator's arenas, and the free pages in them.
#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "options of glibc's allocator"))]

/// Has all threads of this process share one arena: glibc would give each of them, up to eight by processor, an arena
/// of its own, with what it keeps for reuse. For processes that do little at a time. Other C libraries have no arenas.
pub fn share_one() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - plain integers; an option that glibc does not know changes nothing.
    let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives free pages back to the kernel, also those between others that are in use: glibc keeps them for reuse. For
/// processes that begin a long life after a short one with more memory. Does nothing with other C libraries.
pub fn release_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - takes the allocator's locks itself, and changes no memory that is allocated.
    let _released = unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;
    use crate::mapping::page_len;

    /// How many of a block's whole pages exist.
    fn pages(block: usize, len: usize) -> usize {
        let page = page_len().unwrap();
        let (first, end) = (block.next_multiple_of(page), (block + len) / page * page);
        let mut present = vec![0_u8; (end - first) / page];
        // SAFETY:
        // - only looked up, whether mapped or not; `present` has a byte for each page.
        let asked = unsafe {
            libc::mincore(
                std::ptr::without_provenance_mut(first),
                end - first,
                present.as_mut_ptr(),
            )
        };
        assert_eq!(asked, 0);
        present.iter().filter(|one| **one & 1 == 1).count()
    }

    #[test]
    fn pages_between_others_are_released() {
        // Shorter than what glibc maps by itself.
        const LEN: usize = 64 << 10;
        let mut blocks: Vec<_> = (0..16).map(|_| Some(vec![1_u8; LEN])).collect();
        let middle: Vec<usize> =
            blocks[1..15].iter().step_by(2).flatten().map(|block| block.as_ptr().addr()).collect();
        let exist = || middle.iter().map(|block| pages(*block, LEN)).sum::<usize>();
        let all = exist();
        blocks[1..15].iter_mut().step_by(2).for_each(|block| *block = None);
        release_free_pages();
        // The allocator keeps the pages in which its own words are.
        assert!(exist() <= all / 4, "{} of {all} pages", exist());
        assert!(blocks.iter().flatten().all(|block| block[LEN - 1] == 1));
    }
}
