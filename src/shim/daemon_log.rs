//! Bounds the daemon's log, which is a file of the state directory: a full one becomes `daemon.log.1`. Runs in the shim
//! daemon.
//!
//! Standard error is that file, and the group's other processes of the runtime have it, too. So a full file is copied
//! and emptied, not renamed: all of them append.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{SFlag, fstat};
use nix::unistd::ftruncate;

use cwasi_host::one_line::OneLine;
use cwasi_host::state::PRIVATE_FILE;

/// Largest log in bytes; a group has two.
const LOG_MAX: u64 = 4 << 20;

/// Standard error for each line, which is the log at `path`.
pub fn writer(path: PathBuf) -> impl Fn() -> OneLine<io::Stderr> {
    move || {
        // A line is worth more than the bound.
        let _unbounded = bound(io::stderr().as_fd(), &path, LOG_MAX);
        OneLine(io::stderr())
    }
}

/// Empties a log that has `max` bytes or more, after a copy.
fn bound(log: BorrowedFd<'_>, path: &Path, max: u64) -> io::Result<()> {
    let stat = fstat(log)?;
    let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    if !is_file || u64::try_from(stat.st_size).unwrap_or(0) < max {
        return Ok(());
    }
    let copied = copy(path);
    ftruncate(log, 0)?;
    copied
}

fn copy(path: &Path) -> io::Result<()> {
    let mut older = path.as_os_str().to_owned();
    older.push(".1");
    let mut options = OpenOptions::new();
    let mut to = options.create(true).write(true).truncate(true).mode(PRIVATE_FILE).open(&older)?;
    let copied = io::copy(&mut File::open(path)?, &mut to).map(drop);
    // Half a copy takes room without any use.
    copied.or_else(|error| fs::remove_file(&older).and(Err(error)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_full_log_begins_anew_and_keeps_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let mut other = log.try_clone().unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            bound(log.as_fd(), &path, 8).unwrap();
            log.write_all(line.as_bytes()).unwrap();
        }
        other.write_all(b"four\n").unwrap();
        let texts = ["daemon.log", "daemon.log.1"]
            .map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
        assert_eq!(texts, ["three\nfour\n", "one\ntwo\n"]);
    }

    #[test]
    fn what_is_no_file_has_no_bound() {
        let (_reader, writer) = io::pipe().unwrap();
        bound(writer.as_fd(), Path::new("/nonexistent"), 0).unwrap();
    }
}
