//! The directory of the calls whose answers are not delivered yet. It outlives the gateway, and a power cut.
//!
//! A call is a file `ID.call` until its answer is stored as `ID.answer`; then that until it is delivered. Each has one
//! line of JSON, and then the bytes of the body. A file is written under another name first, so that it is whole.
//!
//! Invariant: one gateway uses a directory ([`Spool::open`] locks it), and changes no file of others: a directory that
//! is not its own is refused, and it removes files of its own names only.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cwasi_wire::ids::CallId;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file that is locked. It marks the directory as a gateway's, too.
const LOCK: &str = "lock";
/// Beginning of the names of files that are being written.
const UNFINISHED: &str = ".new-";
/// End of the name of a file that no version can read.
const DAMAGED: &str = ".damaged";
/// How long such a file stays for the operator.
const DAMAGED_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Permissions of the directory: bodies and URLs may be secrets.
const MODE: u32 = 0o700;

/// What a file of a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpoolFile {
    /// The call, which is to be made.
    Call,
    /// Its answer, which is to be delivered.
    Answer,
}

impl SpoolFile {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Answer => "answer",
        }
    }
}

#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    _lock: Flock<File>,
}

impl Spool {
    /// Opens a directory, makes it if there is none, and removes files that were not written to their end.
    ///
    /// # Errors
    /// When it cannot be used, is not a gateway's alone, or another gateway uses it.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(MODE).create(directory)?;
        check_owner(directory)?;
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            if !is_ours(Path::new(&name)) {
                let name = name.to_string_lossy();
                let text = format!("it has a file of others, {name:?}: name an empty directory");
                return Err(io::Error::other(text));
            }
        }
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(directory.join(LOCK))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(
                |(_, error)| match error {
                    Errno::EWOULDBLOCK => io::Error::other("another gateway uses it"),
                    error => error.into(),
                },
            )?;
        let spool = Self { directory: directory.to_owned(), _lock: lock };
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if is_named(&entry.path(), UNFINISHED) || is_old_damaged(&entry) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(spool)
    }

    /// Sets a file aside that cannot be read, so that no later start tries it again; its new path.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub(super) fn set_aside(&self, id: CallId, kind: SpoolFile) -> io::Result<PathBuf> {
        let from = self.path(id, kind);
        let mut to = from.clone().into_os_string();
        to.push(DAMAGED);
        fs::rename(&from, &to)?;
        Ok(to.into())
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
        kind: SpoolFile,
        head: &impl Serialize,
        body: &[u8],
    ) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.directory)?;
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
    /// When it cannot be read; [`io::ErrorKind::InvalidData`] when it is damaged or of another version.
    pub(super) fn load<T: DeserializeOwned>(
        &self,
        id: CallId,
        kind: SpoolFile,
    ) -> io::Result<Option<(T, Vec<u8>)>> {
        let mut bytes = match fs::read(self.path(id, kind)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let line = bytes.iter().position(|byte| *byte == b'\n');
        let damaged = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let line = line.ok_or_else(|| damaged("it has no first line".to_owned()))?;
        let body = bytes.split_off(line + 1);
        let head = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        Ok(Some((head, body)))
    }

    /// Removes one file, if it is there.
    ///
    /// # Errors
    /// When it stays.
    pub(super) fn remove(&self, id: CallId, kind: SpoolFile) -> io::Result<()> {
        match fs::remove_file(self.path(id, kind)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, id: CallId, kind: SpoolFile) -> PathBuf {
        self.directory.join(format!("{id}.{}", kind.suffix()))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

/// Refuses a directory that other users can change or read.
fn check_owner(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let text = if !found.is_dir() {
        "it is a symbolic link: name the directory itself".to_owned()
    } else if found.uid() != geteuid().as_raw() {
        format!("it belongs to user {}: name a directory of the gateway's user", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("other users can enter it (mode {:o}): chmod 700 it", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(io::Error::other(text))
}

/// True for names that a gateway gives.
fn is_ours(path: &Path) -> bool {
    let damaged = path.to_str().and_then(|name| name.strip_suffix(DAMAGED));
    path == Path::new(LOCK)
        || is_named(path, UNFINISHED)
        || parse(damaged.map_or(path, Path::new)).is_some()
}

fn is_named(path: &Path, beginning: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(beginning))
}

/// True for a damaged file that has been kept for long enough.
fn is_old_damaged(entry: &fs::DirEntry) -> bool {
    let is_damaged = entry.file_name().to_str().is_some_and(|name| name.ends_with(DAMAGED));
    let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    is_damaged && age().is_some_and(|age| age > DAMAGED_KEPT)
}

/// The call to which a file belongs.
fn parse(path: &Path) -> Option<CallId> {
    let (id, suffix) = path.file_name()?.to_str()?.split_once('.')?;
    let known = [SpoolFile::Call, SpoolFile::Answer].iter().any(|kind| kind.suffix() == suffix);
    id.parse().ok().filter(|_| known)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_is_stored_is_there_after_a_restart_and_half_files_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("a/b");
        let spool = Spool::open(&directory).unwrap();
        let (first, second) = (CallId([1; 16]), CallId([2; 16]));
        spool.store(first, SpoolFile::Call, &"head\n", b"\nbody\n").unwrap();
        spool.store(first, SpoolFile::Answer, &7, b"").unwrap();
        spool.store(second, SpoolFile::Answer, &8, &[0, 10]).unwrap();
        fs::write(directory.join(".new-XYZ"), "half").unwrap();
        assert!(Spool::open(&directory).unwrap_err().to_string().contains("another gateway"));
        drop(spool);
        let spool = Spool::open(&directory).unwrap();
        assert_eq!(spool.unfinished().unwrap(), [first, second]);
        assert!(!directory.join(".new-XYZ").exists());
        let (head, body) = spool.load::<String>(first, SpoolFile::Call).unwrap().unwrap();
        assert_eq!((head.as_str(), body.as_slice()), ("head\n", &b"\nbody\n"[..]));
        assert_eq!(spool.load::<u8>(second, SpoolFile::Answer).unwrap().unwrap(), (8, vec![0, 10]));
        assert!(spool.load::<u8>(second, SpoolFile::Call).unwrap().is_none());
        for kind in [SpoolFile::Call, SpoolFile::Answer] {
            spool.remove(first, kind).unwrap();
            spool.remove(second, kind).unwrap();
            spool.remove(second, kind).unwrap();
        }
        assert!(spool.unfinished().unwrap().is_empty());
    }

    fn modes(directory: &Path, mode: u32) {
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_of_others_is_refused_and_stays_as_it_is() {
        for name in ["thesis.txt", "id_rsa", ".hidden", "x.call", ".tmpabc", "lock.old"] {
            let parent = tempfile::tempdir().unwrap();
            let directory = parent.path();
            modes(directory, 0o700);
            fs::write(directory.join(name), "precious").unwrap();
            let refused = Spool::open(directory).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
            assert_eq!(fs::read(directory.join(name)).unwrap(), b"precious");
            assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("open");
        fs::create_dir(&directory).unwrap();
        modes(&directory, 0o755);
        assert!(Spool::open(&directory).unwrap_err().to_string().contains("chmod 700"));
        modes(&directory, 0o700);
        let link = parent.path().join("link");
        symlink(&directory, &link).unwrap();
        assert!(Spool::open(&link).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_leads_elsewhere_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let (target, directory) = (parent.path().join("target"), parent.path().join("spool"));
        fs::write(&target, "precious").unwrap();
        fs::DirBuilder::new().mode(MODE).create(&directory).unwrap();
        symlink(&target, directory.join(LOCK)).unwrap();
        assert!(Spool::open(&directory).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }

    #[test]
    fn a_damaged_file_is_tried_once_and_kept_for_a_while() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("spool");
        let spool = Spool::open(&directory).unwrap();
        let id = CallId([1; 16]);
        for bytes in [&b"no line"[..], b"no JSON\n", b"\"another\"\nbody"] {
            fs::write(spool.path(id, SpoolFile::Call), bytes).unwrap();
            let error = spool.load::<u8>(id, SpoolFile::Call).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let aside = spool.set_aside(id, SpoolFile::Call).unwrap();
        assert!(spool.unfinished().unwrap().is_empty());
        drop(spool);
        drop(Spool::open(&directory).unwrap());
        assert!(aside.exists());
        let old = std::time::SystemTime::now() - DAMAGED_KEPT - Duration::from_secs(60);
        File::options().write(true).open(&aside).unwrap().set_modified(old).unwrap();
        drop(Spool::open(&directory).unwrap());
        assert!(!aside.exists());
    }
}
