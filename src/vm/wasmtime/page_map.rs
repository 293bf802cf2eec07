//! The descriptor of this process's page map, which wasmtime opens once and keeps by its number. Runs in builder and
//! workers.
//!
//! In a child of `fork`, wasmtime opens the child's own page map and puts it on that number. If the number were closed
//! before, it would replace whatever has the number then.

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;
use std::sync::OnceLock;

use wasmtime::PoolingAllocationConfig;

const OWN: &str = "/proc/self/pagemap";

/// Its number, and whether the kernel can be asked which pages were written (Linux 6.7 and later); `None` if there is
/// no page map.
pub(super) fn find() -> Option<(RawFd, bool)> {
    static FOUND: OnceLock<Option<(RawFd, bool)>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // The number that it gets: the lowest free one.
        let number = File::open(OWN).ok()?.as_raw_fd();
        let scans = PoolingAllocationConfig::is_pagemap_scan_available();
        let opened = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        (opened.file_name() == Path::new(OWN).file_name()).then_some((number, scans))
    })
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
