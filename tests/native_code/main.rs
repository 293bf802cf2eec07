//! Every way in which glibc or the engine would load native code of an image into a process that has entered the
//! image's root: without a barrier the planted code runs; with the seccomp filter alone, or with mounts that run nothing
//! alone, it does not. In processes of their own (chroot, mount namespace).
//! They need root and a C compiler.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(unsafe_code, reason = "calls glibc the way that code of ours might, and enters roots")]

#[path = "../worker_life/harness.rs"]
mod harness;
mod memory;
mod plant;
mod ways;

fn main() {
    std::process::exit(harness::run(&[ways::CASES, memory::CASES].concat()));
}
