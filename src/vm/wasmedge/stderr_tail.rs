//! Keeps the last bytes that a guest has written to stderr.
//!
//! Runs in workers. The engine calls libc's `writev` for a guest's writes. `cwasi-sandbox-wasmedge` exports a `writev` of its
//! own, and the dynamic linker binds the engine's calls to it, because a program's symbols precede those of its
//! libraries. It makes the same system call and copies what stderr took between [`begin`] and [`end`]. So the bytes
//! reach the container's log as before, without a pipe, a thread or a process in between, and a full log makes a guest
//! wait as before.
#![expect(unsafe_code, reason = "a function of libc, and the guest's memory")]

use std::cell::{Cell, RefCell};

/// Bytes that are kept.
pub const TAIL_MAX: usize = 1024;

thread_local! {
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    static TAIL: RefCell<Tail> = const { RefCell::new(Tail::new()) };
}

/// Forgets what was written before and records what this thread writes from now on.
pub fn begin() {
    TAIL.with_borrow_mut(|tail| tail.written = 0);
    IS_RECORDING.set(true);
}

pub fn end() {
    IS_RECORDING.set(false);
}

/// The last recorded bytes, at most [`TAIL_MAX`].
#[must_use]
pub fn get() -> Vec<u8> {
    TAIL.with_borrow(Tail::bytes)
}

/// A ring of the last bytes.
#[derive(Debug)]
struct Tail {
    ring: [u8; TAIL_MAX],
    /// Bytes that came in all.
    written: usize,
}

impl Tail {
    const fn new() -> Self {
        Self { ring: [0; TAIL_MAX], written: 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        let (start, end) = self.ring.split_at(self.written % TAIL_MAX);
        if self.written < TAIL_MAX { start.to_vec() } else { [end, start].concat() }
    }

    /// Adds the first `written` bytes of `parts`.
    ///
    /// # Safety
    /// So many bytes can be read there.
    unsafe fn add(&mut self, parts: &[libc::iovec], mut written: usize) {
        for part in parts {
            let len = part.iov_len.min(written);
            written -= len;
            // Of a long part only the end is kept.
            let skipped = len.saturating_sub(TAIL_MAX);
            self.written = self.written.wrapping_add(skipped);
            let (mut from, mut left) = (skipped, len - skipped);
            while left > 0 {
                let at = self.written % TAIL_MAX;
                let count = left.min(TAIL_MAX - at);
                // SAFETY:
                // - `from + count` is at most `len`, which the caller says can be read; `at + count` at most the ring's
                //   length.
                // - no reference to the guest's bytes is made, and the ring is no part of a guest's memory.
                unsafe {
                    let source = part.iov_base.cast::<u8>().add(from);
                    std::ptr::copy_nonoverlapping(source, self.ring[at..].as_mut_ptr(), count);
                }
                (from, left) = (from + count, left - count);
                self.written = self.written.wrapping_add(count);
            }
        }
    }
}

/// writev(2), which records.
///
/// # Safety
/// As libc's: the kernel checks everything, and the caller keeps `parts` as they are meanwhile.
pub unsafe fn writev(
    fd: libc::c_int,
    parts: *const libc::iovec,
    count: libc::c_int,
) -> libc::ssize_t {
    // SAFETY:
    // - the kernel checks descriptor, pointers and count; `syscall` sets errno as libc's `writev` does.
    let written = unsafe { libc::syscall(libc::SYS_writev, fd, parts, count) };
    if fd == libc::STDERR_FILENO
        && let Ok(written @ 1..) = usize::try_from(written)
        && let Ok(count) = usize::try_from(count)
        && IS_RECORDING.try_with(Cell::get).unwrap_or(false)
    {
        // SAFETY:
        // - the kernel has read `count` parts there, and `written` bytes where they point.
        let record = |tail: &mut Tail| unsafe {
            tail.add(std::slice::from_raw_parts(parts, count), written);
        };
        TAIL.with_borrow_mut(record);
    }
    libc::ssize_t::try_from(written).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_end_of_whatever_was_written_is_kept(
            writes in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 0..4),
                0..6,
            ),
            cut in 0..2000_usize,
        ) {
            let mut tail = Tail::new();
            let mut all: Vec<u8> = Vec::new();
            for parts in &writes {
                let whole = parts.concat();
                let written = whole.len().saturating_sub(cut);
                all.extend(&whole[..written]);
                let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
                // SAFETY:
                // - an `IoSlice` is an `iovec`, says std; there are as many bytes.
                unsafe {
                    let parts = std::slice::from_raw_parts(parts.as_ptr().cast(), parts.len());
                    tail.add(parts, written);
                }
            }
            prop_assert_eq!(tail.bytes(), &all[all.len().saturating_sub(TAIL_MAX)..]);
        }
    }

    #[test]
    fn only_what_stderr_took_while_recording_is_kept() {
        let say = |fd, text: &str| {
            let parts = [IoSlice::new(text.as_bytes())];
            // SAFETY:
            // - an `IoSlice` is an `iovec`, says std.
            unsafe { writev(fd, parts.as_ptr().cast(), 1) }
        };
        let (_reader, other) = std::io::pipe().unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&other);
        assert_eq!(say(libc::STDERR_FILENO, "before\n"), 7);
        begin();
        assert_eq!((say(libc::STDERR_FILENO, "said\n"), say(other, "elsewhere")), (5, 9));
        assert_eq!(say(-1, "nowhere"), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        end();
        assert_eq!(say(libc::STDERR_FILENO, "after\n"), 6);
        assert_eq!(get(), b"said\n");
        begin();
        assert_eq!(get(), b"");
        end();
    }
}
