//! Opens files that a user names. A fifo may never have a writer, and a device has no end: neither is opened for reading.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file, or the file that a link leads to. Does not wait for the writer of a fifo. The kind is that of
/// the opened file, so no other file can take its place afterwards.
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is no regular file"))
}

/// All bytes of a regular file.
///
/// # Errors
/// As [`open`], and when it cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`read`], and when it is no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn fifos_devices_and_folders_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, file) = (folder.path().join("fifo"), folder.path().join("file"));
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        for path in [&fifo, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(read(path).unwrap_err().to_string(), "it is no regular file", "{path:?}");
        }
        fs::write(&file, "text").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(read(&link).unwrap(), b"text");
        assert_eq!(read_to_string(&file).unwrap(), "text");
        assert_eq!(read(Path::new("/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
