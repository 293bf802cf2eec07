//! Lines of the host on a function's stderr, beside what its guest writes there. The `eprintln!` of std
//! panics when nobody reads any more and waits when nobody reads fast enough; init may do neither.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Longest line in bytes, its end included: a pipe that is writable takes that much at once (`PIPE_BUF`).
const LINE_MAX: usize = 4096;

/// Writes a line unless stderr would make us wait: for init, and
/// for workers that have an answer to give.
pub fn try_line(text: &str) {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0) {
        line(text);
    }
}

/// Writes a line and waits until somebody takes it: for last words.
pub fn line(text: &str) {
    const PREFIX: &str = "cwasi: ";
    let mut line = String::with_capacity(PREFIX.len() + text.len() + 1);
    line.push_str(PREFIX);
    line.push_str(text);
    line.truncate(line.floor_char_boundary(LINE_MAX - 1));
    line.push('\n');
    // Without a reader there is nobody to be told.
    let _unread = io::stderr().write_all(line.as_bytes());
}
