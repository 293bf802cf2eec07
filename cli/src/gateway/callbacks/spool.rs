//! The directory of the calls whose answers are not delivered yet. It outlives the gateway, and a power cut.
//!
//! A call is a file `ID.call` until its answer is stored as `ID.answer`; then that until it is delivered. Each has one
//! line of JSON, and then the bytes of the body. A file is written under another name first, so that it is whole.
//!
//! Invariant: one gateway uses a directory ([`Spool::open`] locks it).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cwasi::wire::ids::CallId;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

/// The file that is locked.
const LOCK: &str = "lock";
/// Permissions of the directory: bodies and URLs may be secrets.
const MODE: u32 = 0o700;

/// What a file of a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The call, which is to be made.
    Call,
    /// Its answer, which is to be delivered.
    Answer,
}

impl Kind {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Answer => "answer",
        }
    }
}

/// The directory.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    _lock: Flock<File>,
}

impl Spool {
    /// Opens a directory, makes it if there is none, and removes files that were not written to their end.
    ///
    /// # Errors
    /// When it cannot be used, or another gateway uses it.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(MODE).create(directory)?;
        let file = File::create(directory.join(LOCK))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(
                |(_, error)| match error {
                    Errno::EWOULDBLOCK => io::Error::other("another gateway uses it"),
                    error => error.into(),
                },
            )?;
        let spool = Self { directory: directory.to_owned(), _lock: lock };
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let is_ours = path.ends_with(LOCK) || parse(&path).is_some();
            if !is_ours && path.is_file() {
                fs::remove_file(path)?;
            }
        }
        Ok(spool)
    }

    /// The calls that are not finished.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(super) fn unfinished(&self) -> io::Result<Vec<CallId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            ids.extend(parse(&entry?.path()));
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Stores one file. When it returns, the file outlives a power cut.
    ///
    /// # Errors
    /// When it is not stored.
    pub(super) fn store(
        &self,
        id: CallId,
        kind: Kind,
        head: &impl Serialize,
        body: &[u8],
    ) -> io::Result<()> {
        let mut file = NamedTempFile::new_in(&self.directory)?;
        serde_json::to_writer(&mut file, head)?;
        file.write_all(b"\n")?;
        file.write_all(body)?;
        file.as_file().sync_all()?;
        file.persist(self.path(id, kind))?;
        self.sync()
    }

    /// What a file holds; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is of another version.
    pub(super) fn load<T: DeserializeOwned>(
        &self,
        id: CallId,
        kind: Kind,
    ) -> io::Result<Option<(T, Vec<u8>)>> {
        let mut bytes = match fs::read(self.path(id, kind)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let line = bytes.iter().position(|byte| *byte == b'\n');
        let line = line.ok_or_else(|| io::Error::other("a file without its first line"))?;
        let body = bytes.split_off(line + 1);
        Ok(Some((serde_json::from_slice(&bytes)?, body)))
    }

    /// Removes one file, if it is there.
    ///
    /// # Errors
    /// When it stays.
    pub(super) fn remove(&self, id: CallId, kind: Kind) -> io::Result<()> {
        match fs::remove_file(self.path(id, kind)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, id: CallId, kind: Kind) -> PathBuf {
        self.directory.join(format!("{id}.{}", kind.suffix()))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

/// The call to which a file belongs.
fn parse(path: &Path) -> Option<CallId> {
    let (id, suffix) = path.file_name()?.to_str()?.split_once('.')?;
    let known = [Kind::Call, Kind::Answer].iter().any(|kind| kind.suffix() == suffix);
    id.parse().ok().filter(|_| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_there_after_a_restart_and_half_files_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/b");
        let spool = Spool::open(&directory).unwrap();
        let (first, second) = (CallId([1; 16]), CallId([2; 16]));
        spool.store(first, Kind::Call, &"head\n", b"\nbody\n").unwrap();
        spool.store(first, Kind::Answer, &7, b"").unwrap();
        spool.store(second, Kind::Answer, &8, &[0, 10]).unwrap();
        fs::write(directory.join(".tmpXYZ"), "half").unwrap();
        assert!(Spool::open(&directory).unwrap_err().to_string().contains("another gateway"));
        drop(spool);
        let spool = Spool::open(&directory).unwrap();
        assert_eq!(spool.unfinished().unwrap(), [first, second]);
        assert!(!directory.join(".tmpXYZ").exists());
        let (head, body) = spool.load::<String>(first, Kind::Call).unwrap().unwrap();
        assert_eq!((head.as_str(), body.as_slice()), ("head\n", &b"\nbody\n"[..]));
        assert_eq!(spool.load::<u8>(second, Kind::Answer).unwrap().unwrap(), (8, vec![0, 10]));
        assert!(spool.load::<u8>(second, Kind::Call).unwrap().is_none());
        for kind in [Kind::Call, Kind::Answer] {
            spool.remove(first, kind).unwrap();
            spool.remove(second, kind).unwrap();
            spool.remove(second, kind).unwrap();
        }
        assert!(spool.unfinished().unwrap().is_empty());
    }
}
