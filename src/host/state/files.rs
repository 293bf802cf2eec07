//! Reads and writes state files: for this user alone, and atomically.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

/// Modes of the state's directories and files: nothing for other users.
pub(super) const PRIVATE_DIR: u32 = 0o700;
/// The same for files.
pub const PRIVATE_FILE: u32 = 0o600;
/// How the name of a file ends while a process writes it; before that comes the process's id.
const UNFINISHED: &str = ".new";
/// Largest state file in bytes.
const STATE_FILE_MAX: u64 = 8 * 1024 * 1024;

/// A failed operation on a state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A failed file operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "state directory {} belongs to user {owner}: remove it, or set state_dir to another one",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    /// A file of an unknown format.
    #[error("{} cannot be read: {source}", path.display())]
    Content {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// Other processes keep removing a group's lock.
    #[error("{} changes hands all the time; try again", path.display())]
    Contended { path: PathBuf },
}

impl StateError {
    /// For `map_err`.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { operation, path, source }
    }
}

/// Makes a directory, and those above it, for this user alone.
///
/// # Errors
/// When the file system refuses.
pub fn create_private_dir(path: &Path) -> Result<(), StateError> {
    private_dirs().create(path).map_err(StateError::io("create directory", path))
}

/// Makes directories, and those above them, for this user alone.
pub fn private_dirs() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE_DIR);
    builder
}

/// Writes `value` atomically: a reader sees the old file or the new one.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| StateError::Content { path: path.to_owned(), source })?;
    write_file(path, &bytes)
}

/// Writes `value` atomically. Does nothing when the directory does not exist: its group has ended.
///
/// # Errors
/// When the directory exists and cannot be written.
pub fn write_json_if_dir_exists<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| StateError::Content { path: path.to_owned(), source })?;
    match replace(path, &bytes) {
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// Writes `bytes` atomically: a reader sees the old file or the new one.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    if let Some(parent) = path.parent() {
        create_private_dir(parent)?;
    }
    replace(path, bytes)
}

/// Replaces a file in a directory that exists.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let temporary = path.with_extension(format!("{}{UNFINISHED}", std::process::id()));
    let result = write_private(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    result.map_err(|source| {
        // Removes a half-written temporary file.
        let _ = fs::remove_file(&temporary);
        StateError::Io { operation: "write", path: path.to_owned(), source }
    })
}

/// The temporary files of `path` that writers did not finish, each with its writer's process id.
#[must_use]
pub fn unfinished(path: &Path) -> Vec<(PathBuf, i32)> {
    let writer = |entry: &Path| {
        let writer = entry.file_name()?.to_str()?.strip_suffix(UNFINISHED)?.rsplit_once('.')?.1;
        let writer = writer.parse().ok()?;
        (path.with_extension(format!("{writer}{UNFINISHED}")) == entry).then_some(writer)
    };
    let entries = path.parent().and_then(|parent| fs::read_dir(parent).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter_map(|entry| writer(&entry).map(|writer| (entry, writer))).collect()
}

/// Readable by root only: the group's configuration may hold the password of Redis.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(path)?.write_all(bytes)
}

/// Reads a state file; `None` if it does not exist.
///
/// # Errors
/// When it cannot be read or is longer than [`STATE_FILE_MAX`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let read = fs::metadata(path).and_then(|meta| {
        if meta.len() > STATE_FILE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::read(path)
    });
    match read {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Content { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::io("read", path)(source)),
    }
}

/// Removes a file; a missing one is no error.
///
/// # Errors
/// When it exists and cannot be removed.
pub fn remove_file(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StateError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
