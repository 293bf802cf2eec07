//! The descriptor of this process's page map, which wasmtime opens once and keeps by its number. Runs in builder and
//! workers.
//!
//! A child of `fork` has to have its own page map under that number. wasmtime has a fork handler for it, which ends the
//! process where neither the page map nor `/dev/null` can be opened, as under a strict seccomp profile. So processes
//! are forked without fork handlers (`sys::process`), and call [`reopen`].
#![expect(unsafe_code, reason = "replaces a descriptor that wasmtime owns")]

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;
use std::sync::OnceLock;

use cwasi_sys::swap;
use wasmtime::PoolingAllocationConfig;

const OWN: &str = "/proc/self/pagemap";

/// Its number, and whether the pool may ask the kernel which pages were written (Linux 6.7 and later); `None` if there
/// is no page map. With swap it may not: it asks for pages that are present, and would leave the others to the next
/// instance.
pub(super) fn find() -> Option<(RawFd, bool)> {
    static FOUND: OnceLock<Option<(RawFd, bool)>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // The number that it gets: the lowest free one.
        let number = File::open(OWN).ok()?.as_raw_fd();
        let scans = PoolingAllocationConfig::is_pagemap_scan_available() && !swap::is_on();
        let opened = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        (opened.file_name() == Path::new(OWN).file_name()).then_some((number, scans))
    })
}

/// Puts this process's own page map in the place of its parent's. If it cannot be opened, stdin goes there, which answers
/// no question about pages: the pool resets whole memories then.
///
/// # Panics
/// When neither can be done: instances would see each other's bytes.
pub(super) fn reopen() {
    let Some((number, _)) = find() else { return };
    let own = File::open(OWN).ok();
    let source = own.as_ref().map_or(libc::STDIN_FILENO, |file| file.as_raw_fd());
    // SAFETY:
    // - nothing else has the number of the page map, which is kept as the trait `Module` asks for.
    let replaced = unsafe { libc::dup3(source, number, libc::O_CLOEXEC) };
    assert_eq!(replaced, number, "the page map cannot be replaced");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_names_the_page_map() {
        let (number, _) = find().unwrap();
        let opened = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        assert!(opened.ends_with("pagemap"), "{}", opened.display());
        assert_eq!(find().unwrap().0, number);
    }
}
