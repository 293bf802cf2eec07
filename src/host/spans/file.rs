//! A group's file of spans. A full one replaces the one before it, so that both together are bounded.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::state::{PRIVATE_FILE, StateError, create_private_dir};

/// Longest span file in bytes; a group has two.
pub(super) const FILE_MAX: u64 = 4 << 20;
/// Extension of a full file.
const FULL: &str = "full.jsonl";

#[derive(Debug)]
pub(super) struct SpanFile {
    path: PathBuf,
    /// Whether a missing directory is made.
    makes_dir: bool,
}

impl SpanFile {
    pub(super) const fn new(path: PathBuf, makes_dir: bool) -> Self {
        Self { path, makes_dir }
    }

    /// Appends lines, after it has set aside a file that is full.
    pub(super) fn append(&self, lines: &[u8]) -> Result<(), StateError> {
        let path = &self.path;
        if let Some(directory) = path.parent().filter(|_| self.makes_dir) {
            create_private_dir(directory)?;
        }
        let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
        if length > 0 && length + lines.len() as u64 > FILE_MAX {
            fs::rename(path, full_file(path)).map_err(StateError::io("rename", path))?;
        }
        let file = OpenOptions::new().append(true).create(true).mode(PRIVATE_FILE).open(path);
        let written = file.and_then(|mut file| file.write_all(lines));
        written.map_err(StateError::io("write", path))
    }
}

/// The full file before `path`.
pub fn full_file(path: &Path) -> PathBuf {
    path.with_extension(FULL)
}
