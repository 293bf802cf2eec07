//! The stub for LLVM of WasmEdge's zygote: the engine links LLVM, but only the compiler calls it. Runs in the shim
//! daemon.
//!
//! `build/llvm_stub.rs` makes the library. The zygote gets it as a memfd, which its dynamic linker preloads instead of
//! LLVM. If that fails, the zygote loads LLVM: a linker that cannot open the memfd continues without it, and an
//! engine that misses a symbol ends before the zygote's greeting.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Descriptor of the library in the zygote, which closes it.
pub const LLVM_STUB_FD: i32 = 4;
/// Variable that makes the dynamic linker load it.
pub const ENVIRONMENT: (&str, &str) = ("LD_PRELOAD", "/proc/self/fd/4");

/// The library; empty if there is none for this build's engine.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/llvm-stub.so"));

/// A memfd of the library; `None` if there is none, or no memory for it.
#[must_use]
pub fn file() -> Option<OwnedFd> {
    if LIBRARY.is_empty() {
        return None;
    }
    let mut file = File::from(memfd_create(c"cwasi-no-llvm", MFdFlags::MFD_CLOEXEC).ok()?);
    file.write_all(LIBRARY).ok()?;
    Some(file.into())
}
