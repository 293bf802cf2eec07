//! Second open files of a pipe. Blocking is a property of an open file, which all of its descriptors share, in this
//! process and in others. So non-blocking writes beside blocking ones need a second open file of the pipe.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

/// Opens the file of `fd` once more. Writes append and never wait; writes through `fd` behave as before.
///
/// # Errors
/// When `/proc` is missing, or a FIFO has no reader.
pub fn append_without_waiting(fd: &impl AsFd) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Write as _};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    #[test]
    fn only_the_second_file_is_non_blocking() {
        let (reader, writer) = io::pipe().unwrap();
        let mut second = File::from(append_without_waiting(&writer).unwrap());
        let full = loop {
            if let Err(error) = second.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK));
        drop(reader);
    }
}
