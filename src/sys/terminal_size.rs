//! The size of a terminal, by its master.
#![expect(unsafe_code, reason = "TIOCSWINSZ has no safe wrapper in our libraries")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters in a line.
    pub columns: u16,
    pub rows: u16,
}

/// Sets the size; programs in the terminal's foreground get SIGWINCH.
///
/// # Errors
/// When `terminal` is none.
pub fn set_size(terminal: impl AsFd, size: Size) -> io::Result<()> {
    let size =
        libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY:
    // - `size` is what TIOCSWINSZ reads, and lives for the call.
    // - the descriptor is borrowed, so it stays open for the call.
    let result =
        unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(result)?;
    Ok(())
}
