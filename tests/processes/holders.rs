//! Leases end with the process that holds them.

use std::process::{Command, Stdio};

use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use nix::sys::stat::fstat;

use crate::harness::Case;

pub const CASES: &[Case] = &[("a_killed_holder_gives_its_segment_back", killed)];

fn inode(segment: &Segment) -> u64 {
    fstat(segment.as_fd()).unwrap().st_ino
}

fn killed() {
    let pool = SegmentPool::new(16 << 20);
    let segment = pool.copy_of(&[7; 100_000]).unwrap();
    let number = inode(&segment);
    // Holds the token as its stdout, and waits for an end of its stdin that does not come.
    let token = segment.token().unwrap().try_clone().unwrap();
    let (unread, _kept) = std::io::pipe().unwrap();
    let mut holder =
        Command::new("cat").stdin(Stdio::from(unread)).stdout(Stdio::from(token)).spawn().unwrap();
    drop(segment);
    let other = pool.copy_of(&[8; 100_000]).unwrap();
    assert_ne!(inode(&other), number);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(inode(&pool.copy_of(&[9; 100_000]).unwrap()), number);
}
