//! Swap of this system.

use nix::sys::sysinfo::sysinfo;

/// True if pages may be swapped out, or if the kernel does not say.
#[must_use]
pub fn is_on() -> bool {
    sysinfo().map_or(true, |info| info.swap_total() > 0)
}
