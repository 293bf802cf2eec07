//! Reads a function's log across its files: from the oldest one to that which is written, and on while the runtime
//! begins new ones.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cwasi_config::logs::{FILES_MAX, numbered};

/// A log that is read from its oldest file on.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Opens the oldest file of the log at this path.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let numbers = (1..FILES_MAX).rev().map(|number| numbered(path, number));
        let oldest = numbers.into_iter().find(|path| path.exists());
        let file = File::open(oldest.as_deref().unwrap_or(path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The same log from its oldest file on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reopen(&self) -> io::Result<Self> {
        Self::open(&self.path)
    }

    /// The file after this one; `None` while this is the one that is written.
    fn next(&self) -> io::Result<Option<File>> {
        let own = self.file.metadata()?;
        let is_own = |path: &Path| {
            path.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()))
        };
        // Files only go up, so that this one is met at its old or at its new number.
        let number = (0..FILES_MAX).find(|number| is_own(&numbered(&self.path, *number)));
        match number {
            Some(0) => Ok(None),
            Some(number) => present(File::open(numbered(&self.path, number - 1))),
            // It was removed: what is left begins with the oldest one.
            None => present(Self::open(&self.path).map(|log| log.file)),
        }
    }
}

/// A file that is missing is about to be made, or the log was removed.
fn present(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

impl Read for LogFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.file.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            let Some(next) = self.next()? else { return Ok(0) };
            // It was complete when it got its number, but maybe not before.
            let read = self.file.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.file = next;
        }
    }
}

/// Removes all files of the log at this path.
pub fn remove(path: &Path) {
    for number in 0..FILES_MAX {
        let _missing = std::fs::remove_file(numbered(path, number));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use super::*;

    fn rotate(path: &Path) {
        for number in (0..4).rev().filter(|number| numbered(path, *number).exists()) {
            fs::rename(numbered(path, number), numbered(path, number + 1)).unwrap();
        }
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn rest(log: &mut LogFile) -> String {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_log_is_read_across_its_files_and_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.log");
        assert!(LogFile::open(&path).is_err());
        append(&path, "1\n");
        rotate(&path);
        append(&path, "2\n");
        let mut log = LogFile::open(&path).unwrap();
        assert_eq!(rest(&mut log), "1\n2\n");
        append(&path, "3\n");
        rotate(&path);
        assert_eq!(rest(&mut log), "3\n", "the new file is not there yet");
        append(&path, "4\n");
        rotate(&path);
        append(&path, "5\n");
        assert_eq!(rest(&mut log), "4\n5\n");
        assert_eq!(rest(&mut log.reopen().unwrap()), "1\n2\n3\n4\n5\n");
        remove(&path);
        assert_eq!(rest(&mut log), "");
        append(&path, "anew\n");
        assert_eq!(rest(&mut log), "anew\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
