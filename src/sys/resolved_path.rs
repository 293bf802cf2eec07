//! A path of the host that was resolved once. What was found is open; checks and mounts use the descriptor, so that a
//! path that changes afterwards changes nothing.
//!
//! The only maker of sources for mounts: a raw path reaches none.
#![expect(unsafe_code, reason = "a system call without a wrapper")]

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};

/// Most tries of a look-up in a tree in which something is renamed meanwhile.
const TRIES_MAX: u32 = 64;

/// What becomes of symbolic links on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// They are followed.
    Follow,
    /// A path with one is refused.
    Refuse,
}

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("{} cannot be opened", path.display())]
    Open {
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is a symbolic link{}, and {} may have none: write the path that is meant",
        link.display(), to(target.as_deref()), path.display()
    )]
    Link {
        /// The whole path.
        path: PathBuf,
        link: PathBuf,
        /// Where the link leads; `None` if it is gone already.
        target: Option<PathBuf>,
    },
    #[error("{} is not what it was when it was allowed: somebody has replaced it", path.display())]
    Replaced { path: PathBuf },
}

fn to(target: Option<&Path>) -> String {
    target.map_or_else(String::new, |target| format!(" to {}", target.display()))
}

/// A file's device and number, which no other file has while this one is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

impl FromStr for FileIdentity {
    type Err = io::Error;

    fn from_str(text: &str) -> Result<Self, io::Error> {
        let parsed = text
            .split_once(':')
            .and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
        let (device, inode) = parsed.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { device, inode })
    }
}

/// A file or folder of the host. Clones share its descriptor, which has `O_PATH`.
#[derive(Clone, Debug)]
pub struct ResolvedPath {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    is_folder: bool,
    identity: FileIdentity,
}

impl ResolvedPath {
    /// Resolves a path. Links of `/proc` that lead to open files are always refused.
    ///
    /// # Errors
    /// When nothing is there, or a link is that may not be followed.
    pub fn open(path: &Path, links: Links) -> Result<Self, ResolveError> {
        let resolve = match links {
            Links::Follow => ResolveFlag::RESOLVE_NO_MAGICLINKS,
            Links::Refuse => ResolveFlag::RESOLVE_NO_SYMLINKS,
        };
        Self::resolve(AT_FDCWD, path, resolve, path)
    }

    /// Resolves a path below this folder, without links.
    ///
    /// # Errors
    /// When nothing is there, a link is, or the path leads out of the folder.
    pub fn below(&self, path: &Path) -> Result<Self, ResolveError> {
        if path == Path::new("") {
            return Ok(self.clone());
        }
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        Self::resolve(self.as_fd(), path, resolve, &self.path.join(path))
    }

    fn resolve(
        from: BorrowedFd<'_>,
        path: &Path,
        resolve: ResolveFlag,
        whole: &Path,
    ) -> Result<Self, ResolveError> {
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        let mut tries = 0;
        let opened = loop {
            tries += 1;
            match openat2(from, path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) if tries < TRIES_MAX => {}
                other => break other,
            }
        };
        let failed =
            |source: Errno| ResolveError::Open { path: whole.to_owned(), source: source.into() };
        let fd = opened.map_err(|error| match error {
            Errno::ELOOP => link_in(whole).unwrap_or_else(|| failed(error)),
            _ => failed(error),
        })?;
        let data = fstat(&fd).map_err(failed)?;
        let kind = SFlag::from_bits_truncate(data.st_mode) & SFlag::S_IFMT;
        let identity = FileIdentity { device: data.st_dev, inode: data.st_ino };
        let (path, is_folder) = (whole.to_owned(), kind == SFlag::S_IFDIR);
        Ok(Self { fd: Arc::new(fd), path, is_folder, identity })
    }

    /// The path that was resolved, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub const fn is_folder(&self) -> bool {
        self.is_folder
    }

    #[must_use]
    pub const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Refuses another file than the one with this identity.
    ///
    /// # Errors
    /// [`ResolveError::Replaced`]
    pub fn expect(self, identity: FileIdentity) -> Result<Self, ResolveError> {
        if self.identity == identity {
            Ok(self)
        } else {
            Err(ResolveError::Replaced { path: self.path })
        }
    }

    /// A path that leads to this file in this process, and in its children that have the descriptor. That of a folder
    /// is for those who do not follow a link at a path's end, too.
    #[must_use]
    pub fn by_descriptor(&self) -> PathBuf {
        let end = if self.is_folder { "/." } else { "" };
        format!("/proc/self/fd/{}{end}", self.fd.as_raw_fd()).into()
    }

    /// Where the file is now, without links.
    ///
    /// # Errors
    /// When `/proc` is missing.
    pub fn current_path(&self) -> io::Result<PathBuf> {
        fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// A mount of this file that is nowhere yet, as a bind mount makes it; with the mounts below if `recursive`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn clone_mount(&self, recursive: bool) -> io::Result<OwnedFd> {
        let recursive = if recursive { libc::AT_RECURSIVE.cast_unsigned() } else { 0 };
        let flags = libc::OPEN_TREE_CLONE
            | libc::OPEN_TREE_CLOEXEC
            | libc::AT_EMPTY_PATH.cast_unsigned()
            | recursive;
        // SAFETY:
        // - an open descriptor, and a NUL-terminated path that is read during the call.
        let result =
            unsafe { libc::syscall(libc::SYS_open_tree, self.fd.as_raw_fd(), c"".as_ptr(), flags) };
        let fd = Errno::result(result)?;
        let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
        // SAFETY:
        // - the kernel has just made the descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl AsFd for ResolvedPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The first link of a path, for the message alone: the kernel has refused the path already.
fn link_in(path: &Path) -> Option<ResolveError> {
    let mut part = PathBuf::new();
    for component in path.components() {
        part.push(component);
        if !matches!(component, Component::Normal(_)) {
            continue;
        }
        if part.symlink_metadata().is_ok_and(|data| data.is_symlink()) {
            let target = fs::read_link(&part).ok();
            return Some(ResolveError::Link { path: path.to_owned(), link: part, target });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("data/inner")).unwrap();
        symlink("data", root.join("link")).unwrap();
        let real = ResolvedPath::open(&root.join("data/inner"), Links::Refuse).unwrap();
        let linked = root.join("link/inner");
        let followed = ResolvedPath::open(&linked, Links::Follow).unwrap();
        assert_eq!(real.identity(), followed.identity());
        assert!(real.is_folder());
        assert_eq!(followed.current_path().unwrap(), root.join("data/inner"));
        let text = ResolvedPath::open(&linked, Links::Refuse).unwrap_err().to_string();
        let named = format!("{} is a symbolic link to data", root.join("link").display());
        assert!(text.starts_with(&named), "{text}");
        let missing = ResolvedPath::open(&root.join("none"), Links::Refuse).unwrap_err();
        assert!(matches!(missing, ResolveError::Open { .. }), "{missing}");
        // A magic link.
        assert!(ResolvedPath::open(&real.by_descriptor(), Links::Follow).is_err());
    }

    #[test]
    fn what_was_resolved_stays_when_its_path_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (data, secret) = (dir.path().join("data"), dir.path().join("secret"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(data.join("own"), "").unwrap();
        let resolved = ResolvedPath::open(&data, Links::Refuse).unwrap();
        fs::rename(&data, dir.path().join("moved")).unwrap();
        symlink("secret", &data).unwrap();
        assert!(resolved.by_descriptor().join("own").exists());
        let again = ResolvedPath::open(&data, Links::Follow).unwrap();
        let replaced = again.expect(resolved.identity()).unwrap_err();
        assert!(replaced.to_string().contains("somebody has replaced it"), "{replaced}");
        let identity = resolved.identity().to_string().parse().unwrap();
        assert!(resolved.expect(identity).is_ok());
    }

    #[test]
    fn nothing_outside_is_below() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink("b", dir.path().join("a/link")).unwrap();
        let a = ResolvedPath::open(&dir.path().join("a"), Links::Follow).unwrap();
        assert!(a.below(Path::new("b")).is_ok());
        assert!(a.below(Path::new("")).is_ok());
        for outside in ["..", "b/../..", "/", "link", "none"] {
            assert!(a.below(Path::new(outside)).is_err(), "{outside}");
        }
    }
}
