//! A log file whose size is bounded: the daemon copies a container's output into it, and renames it to `PATH.1` when it
//! is full ([`Rotation`]). Runs in the shim daemon.
//!
//! Invariants: no other user can change where the log lies. A function never waits for its log's disk. What does not fit
//! is counted, and the next line that fits says how much it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinSet;

use cwasi_config::logs::{Rotation, numbered};
use cwasi_sys::owned_path;
use cwasi_wire::log_line;

/// Bytes that are copied at once: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// The files of one log.
#[derive(Debug)]
struct RotatedLog {
    path: PathBuf,
    rotation: Rotation,
    /// The file that is written; `None` after it was renamed and no new one could be made.
    file: Option<File>,
    len: u64,
    /// Bytes that were lost since the last line that fitted.
    lost: u64,
}

impl RotatedLog {
    fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            // A daemon of root writes, renames and removes files there for as long as the container runs.
            owned_path::check(parent).map_err(io::Error::other)?;
            fs::create_dir_all(parent)?;
        }
        let file = append_to(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), rotation, file: Some(file), len, lost: 0 })
    }

    /// Appends bytes, or counts them as lost.
    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Err(error) = self.report_lost().and_then(|()| self.append(&mut rest)) {
            if self.lost == 0 {
                let path = self.path.display();
                tracing::warn!(%path, %error, "a function's log cannot be written");
            }
            self.lost = self.lost.saturating_add(rest.len() as u64);
        }
    }

    fn report_lost(&mut self) -> io::Result<()> {
        if self.lost == 0 {
            return Ok(());
        }
        let line =
            format!("cwasi: {} bytes of this log were lost: it could not be written\n", self.lost);
        let line = log_line::with_time(SystemTime::now(), line.as_bytes());
        self.append(&mut line.as_slice())?;
        self.lost = 0;
        Ok(())
    }

    /// Appends bytes; those that were not written are left in `rest`.
    fn append(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        self.make_room(rest.len())?;
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.len += written as u64;
                    *rest = &rest[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Begins a new file if `more` bytes would make this one too large.
    fn make_room(&mut self, more: usize) -> io::Result<()> {
        if self.len > 0 && self.len.saturating_add(more as u64) > self.rotation.max_size {
            for number in (0..self.rotation.max_files).rev() {
                self.move_up(number)?;
            }
            (self.file, self.len) = (None, 0);
        }
        if self.file.is_none() {
            self.file = Some(append_to(&self.path)?);
        }
        Ok(())
    }

    /// Gives a file the next number, or removes the oldest one.
    fn move_up(&self, number: u32) -> io::Result<()> {
        let from = numbered(&self.path, number);
        let moved = match number + 1 {
            last if last == self.rotation.max_files => fs::remove_file(&from),
            next => fs::rename(&from, numbered(&self.path, next)),
        };
        moved.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

/// A container's output on its way into a log. Dropped before it is copied, it writes what the pipe holds: the reason
/// why a start failed.
#[derive(Debug)]
pub struct LogPipe {
    pipe: Option<PipeReader>,
    log: Option<RotatedLog>,
}

impl LogPipe {
    /// Opens the log; returns the pipe's end for the container also.
    ///
    /// # Errors
    /// When the file system refuses, or there are too many descriptors.
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<(Self, OwnedFd)> {
        let log = RotatedLog::open(path, rotation)?;
        let (pipe, writer) = io::pipe()?;
        Ok((Self { pipe: Some(pipe), log: Some(log) }, writer.into()))
    }

    /// Starts copying, until all other ends are closed. Called within the runtime.
    ///
    /// # Errors
    /// When the reactor takes no more descriptors.
    pub fn serve(mut self, copying: &mut JoinSet<()>) -> io::Result<()> {
        let (Some(pipe), Some(log)) = (self.pipe.take(), self.log.take()) else { return Ok(()) };
        let pipe = Receiver::from_owned_fd(pipe.into())?;
        copying.spawn(copy(pipe, log));
        Ok(())
    }
}

impl Drop for LogPipe {
    fn drop(&mut self) {
        let (Some(pipe), Some(log)) = (&mut self.pipe, &mut self.log) else { return };
        let mut said = vec![0; CHUNK];
        let read = fcntl(&*pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(io::Error::from)
            .and_then(|_| io::Read::read(pipe, &mut said));
        // An error is that of an empty pipe.
        log.write(&said[..read.unwrap_or(0)]);
    }
}

async fn copy(pipe: Receiver, mut log: RotatedLog) {
    while pipe.readable().await.is_ok() {
        // Made for each chunk: most functions are silent most of the time.
        let mut chunk = vec![0; CHUNK];
        match pipe.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(len) => {
                let written = tokio::task::spawn_blocking(move || {
                    log.write(&chunk[..len]);
                    log
                });
                let Ok(returned) = written.await else { return };
                log = returned;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "a function's output cannot be read");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SMALL: Rotation = Rotation { max_size: 11, max_files: 3 };

    fn texts(path: &Path) -> Vec<String> {
        let texts = (0..4).map(|number| fs::read_to_string(numbered(path, number)));
        texts.map_while(Result::ok).collect()
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        let mut log = RotatedLog::open(&path, SMALL).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "a line that is longer\n", "six\n"] {
            log.write(line.as_bytes());
        }
        assert_eq!(texts(&path), ["six\n", "a line that is longer\n", "three\nfour\n"]);
        drop(log);
        RotatedLog::open(&path, SMALL).unwrap().write(b"seven\n");
        assert_eq!(texts(&path)[0], "six\nseven\n");
    }

    #[test]
    fn a_folder_or_file_of_others_gets_no_log() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = RotatedLog::open(&theirs.join("new/log"), SMALL).unwrap_err().to_string();
        assert!(refused.contains("everybody may write"), "{refused}");
        assert!(!theirs.join("new").exists());
        let (link, secret) = (dir.path().join("link"), dir.path().join("secret"));
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        assert!(RotatedLog::open(&link, SMALL).is_err());
        assert!(!secret.exists());
    }

    #[test]
    fn one_file_alone_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = RotatedLog::open(&path, Rotation { max_files: 1, ..SMALL }).unwrap();
        log.write(b"12345678\n");
        log.write(b"9\n10\n");
        assert_eq!(texts(&path), ["9\n10\n"]);
    }

    #[test]
    fn what_does_not_fit_on_the_disk_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = RotatedLog::open(Path::new("/dev/full"), SMALL).unwrap();
        log.write(b"lost");
        log.write(b"lost, too");
        (log.path, log.file, log.rotation.max_size) = (path.clone(), None, 1000);
        log.write(b"fits\n");
        let text = fs::read_to_string(path).unwrap();
        let (_, rest) = log_line::split_time(text.as_bytes()).unwrap();
        let expected: &[u8] =
            b"cwasi: 13 bytes of this log were lost: it could not be written\nfits\n";
        assert_eq!(rest, expected);
    }

    #[test]
    fn a_start_that_fails_leaves_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (pipe, writer) = LogPipe::open(&path, Rotation { max_size: 100, ..SMALL }).unwrap();
        File::from(writer.try_clone().unwrap()).write_all(b"why\n").unwrap();
        drop(pipe);
        assert_eq!(fs::read_to_string(path).unwrap(), "why\n");
        drop(writer);
    }
}
