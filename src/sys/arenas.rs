//! The allocator's arenas.
#![expect(unsafe_code, reason = "an option of glibc's allocator")]

/// Has all threads of this process share one arena: glibc would give each of them, up to eight by processor, an arena
/// of its own, with what it keeps for reuse. For processes that do little at a time. Other C libraries have no arenas.
pub fn share_one() {
    #[cfg(target_env = "gnu")]
    // SAFETY:
    // - plain integers; an option that glibc does not know changes nothing.
    let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}
