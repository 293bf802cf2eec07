//! What the zygote gets instead of LLVM, which the engine links but only the compiler calls.
//!
//! Made with the program (`build/stand_in.rs`), handed to the zygote as a memfd that its dynamic linker loads before all
//! else and then takes for LLVM. Where that fails, the zygote loads LLVM, and nothing else differs: a linker that cannot
//! open it goes on without it, and an engine whose symbols it does not have ends before the zygote has greeted.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Number under which the zygote's dynamic linker finds it; the zygote closes it.
pub const STAND_IN_FD: i32 = 4;
/// What makes the dynamic linker load it.
pub const ENVIRONMENT: (&str, &str) = ("LD_PRELOAD", "/proc/self/fd/4");

/// The library; empty where there is none for the engine that this program was built with.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/llvm-stand-in.so"));

/// A file of it; `None` when there is none, or no memory for it.
#[must_use]
pub fn file() -> Option<OwnedFd> {
    if LIBRARY.is_empty() {
        return None;
    }
    let mut file = File::from(memfd_create(c"cwasi-no-llvm", MFdFlags::MFD_CLOEXEC).ok()?);
    file.write_all(LIBRARY).ok()?;
    Some(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dynamic_linker_is_told_the_descriptors_number() {
        assert_eq!(ENVIRONMENT.1, format!("/proc/self/fd/{STAND_IN_FD}"));
    }

    #[test]
    fn it_is_a_library_and_much_smaller_than_what_it_stands_for() {
        assert!(LIBRARY.starts_with(b"\x7fELF"), "this machine's engine links LLVM");
        assert!(LIBRARY.len() < 200_000);
    }
}
