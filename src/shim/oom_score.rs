//! The daemon's score for the kernel's OOM killer: one more than containerd's, so that a node without memory loses a shim
//! before its containerd. Runs in the shim daemon, before it starts other processes, which inherit the score.

use std::fs;
use std::io;

/// This process's score: a number that its children inherit.
const FILE: &str = "/proc/self/oom_score_adj";
/// The kernel's limit.
const SCORE_MAX: i32 = 1000;

/// Adds one to the score, which is containerd's at the start.
///
/// # Errors
/// When the file cannot be read or written, or holds no number.
pub fn exceed_containerds() -> io::Result<()> {
    let text = fs::read_to_string(FILE)?;
    let inherited: i32 = text.trim().parse().map_err(io::Error::other)?;
    fs::write(FILE, inherited.saturating_add(1).min(SCORE_MAX).to_string())
}
