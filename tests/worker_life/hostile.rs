//! A peer that sends a million descriptors that are no segments: all refused, nothing stays.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe;

use crate::harness::Case;
use crate::regions::counted;

/// Descriptors that are sent.
const SENT: usize = 1_000_000;
/// Bytes that each announces.
const LEN: u64 = 8192;
/// How much the heap of this process may grow, in KiB.
const SLACK_KIB: u64 = 4096;

pub const CASES: &[Case] = &[("a_million_hostile_segments_leave_nothing", a_million)];

/// A memfd of `len` bytes with these seals.
fn memfd(len: u64, seals: SealFlag) -> OwnedFd {
    let file = File::from(memfd_create(c"hostile", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(len).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file.into()
}

/// What no receiver may take for a segment of [`LEN`] bytes.
fn hostile() -> Vec<OwnedFd> {
    let all = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL;
    vec![
        memfd(LEN, SealFlag::empty()),
        memfd(LEN, all - SealFlag::F_SEAL_SHRINK), // could be truncated later
        memfd(LEN, all - SealFlag::F_SEAL_GROW),
        memfd(LEN, all - SealFlag::F_SEAL_WRITE),
        memfd(LEN - 1, all),
        memfd(0, all),
        File::open("/proc/self/exe").unwrap().into(),
        File::open("/dev/zero").unwrap().into(),
        pipe().unwrap().0,
    ]
}

/// Memory of this process and of shared memory that it maps, in KiB.
fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn a_million() {
    let hostile = hostile();
    let token = pipe().unwrap().1;
    let lent = SegmentPool::new(1 << 20).copy_of(&[7; LEN as usize]).unwrap();
    let mut send = |number: usize| {
        let fd = &hostile[number % hostile.len()];
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        assert!(Segment::accept(copy(fd), LEN).is_err(), "{number}");
        assert!(Segment::accept_leased(copy(fd), LEN, copy(&token)).is_err(), "{number}");
        // A lease whose token is no pipe, or one that is shorter than announced.
        let lease = || lent.as_fd().try_clone_to_owned().unwrap();
        assert!(
            Segment::accept_leased(lease(), LEN, copy(fd)).is_err() || is_pipe(number, &hostile)
        );
        assert!(Segment::accept_leased(lease(), 1 << 30, copy(&token)).is_err(), "{number}");
    };
    (0..hostile.len()).for_each(&mut send);
    let (before, memory) = (counted(), memory_kib());
    (0..SENT / 4).for_each(&mut send);
    assert_eq!(counted(), before);
    assert!(memory_kib() < memory + SLACK_KIB, "{memory} {}", memory_kib());
}

/// The one of [`hostile`] that would do as a token.
fn is_pipe(number: usize, hostile: &[OwnedFd]) -> bool {
    number % hostile.len() == hostile.len() - 1
}
