//! Paths that only this process's user, or root, can change: no other user can put a folder or a link in the place of a
//! part of them. A process of root may get the paths of another user from its environment (`su`, `sudo -E`).

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{getegid, geteuid};

/// Most links on the way to one path, as in the kernel.
const LINKS_MAX: u32 = 40;
/// Permissions to write.
const GROUP_WRITABLE: u32 = 0o020;
const WORLD_WRITABLE: u32 = 0o002;
/// The bit by which only owners may rename.
const STICKY: u32 = 0o1000;
/// Owner of files whose user a user namespace does not have.
const UNKNOWN_USER: u32 = 65534;
/// A user namespace's map of users, and the length of the initial one's.
const UID_MAP: &str = "/proc/self/uid_map";
const ALL_USERS: &str = "4294967295";

/// Why another user may change where a path leads.
#[derive(Debug, thiserror::Error)]
pub enum OwnedPathError {
    #[error("{} belongs to user {owner}, not to {}", path.display(), UserName(*user))]
    Owner {
        /// The part of the path.
        path: PathBuf,
        owner: u32,
        /// This process's user.
        user: u32,
    },
    #[error("everybody may write {}", path.display())]
    WorldWritable { path: PathBuf },
    #[error("group {group} may write {}", path.display())]
    GroupWritable { path: PathBuf, group: u32 },
    #[error("{} cannot be examined: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

struct UserName(u32);

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("root"),
            other => write!(f, "user {other}"),
        }
    }
}

/// Who may own a path.
#[derive(Clone, Copy, Debug)]
struct Owners {
    user: u32,
    group: u32,
    /// True in a user namespace, which shows some owners as [`UNKNOWN_USER`].
    in_namespace: bool,
}

impl Owners {
    fn of_process() -> Self {
        let map = fs::read_to_string(UID_MAP).unwrap_or_default();
        let in_namespace = !map.split_whitespace().any(|word| word == ALL_USERS);
        Self { user: geteuid().as_raw(), group: getegid().as_raw(), in_namespace }
    }

    /// Refuses a part that another user owns or, unless only owners may rename in it, everybody may write.
    fn check(self, path: &Path, data: &FileStat) -> Result<(), OwnedPathError> {
        let (path, owner) = (path.to_owned(), data.st_uid);
        let is_unknown = self.in_namespace && owner == UNKNOWN_USER;
        if owner != self.user && owner != 0 && !is_unknown {
            return Err(OwnedPathError::Owner { path, owner, user: self.user });
        }
        // A link's mode says nothing.
        if !is_link(data) && data.st_mode & (WORLD_WRITABLE | STICKY) == WORLD_WRITABLE {
            return Err(OwnedPathError::WorldWritable { path });
        }
        Ok(())
    }

    /// Refuses a path's last part that another group may write.
    fn check_last(self, path: &Path, data: &FileStat) -> Result<(), OwnedPathError> {
        let (path, group) = (path.to_owned(), data.st_gid);
        if data.st_mode & (GROUP_WRITABLE | STICKY) == GROUP_WRITABLE && group != self.group {
            return Err(OwnedPathError::GroupWritable { path, group });
        }
        Ok(())
    }
}

/// Checks every part of an absolute path, links included, each by its descriptor. Returns the path without links. What
/// does not exist yet is only this user's to make.
///
/// # Errors
/// The first part that another user may change.
pub fn check(path: &Path) -> Result<PathBuf, OwnedPathError> {
    Walk::begin(Owners::of_process())?.to(path)
}

/// A look-up from the root on.
struct Walk {
    owners: Owners,
    /// The folder that was reached, and its path.
    at: OwnedFd,
    path: PathBuf,
    data: FileStat,
}

impl Walk {
    fn begin(owners: Owners) -> Result<Self, OwnedPathError> {
        let path = PathBuf::from("/");
        let (at, data) = open(AT_FDCWD, &path, &path)?;
        owners.check(&path, &data)?;
        Ok(Self { owners, at, path, data })
    }

    fn to(mut self, path: &Path) -> Result<PathBuf, OwnedPathError> {
        // The next part is the last one.
        let mut parts = reversed(path);
        let mut links = 0;
        while let Some(part) = parts.pop() {
            let next = self.path.join(&part);
            if part == ".." {
                (self.at, self.data) = open(self.at.as_fd(), Path::new(".."), &next)?;
                self.path.pop();
                continue;
            }
            let (fd, data) = match open(self.at.as_fd(), Path::new(&part), &next) {
                Ok(opened) => opened,
                Err(OwnedPathError::Io { source, .. }) if is_missing(&source) => {
                    parts.push(part);
                    self.path.extend(parts.into_iter().rev());
                    return Ok(self.path);
                }
                Err(error) => return Err(error),
            };
            self.owners.check(&next, &data)?;
            if is_link(&data) {
                links += 1;
                let failed = |source: Errno| io(&next, source);
                let target = readlinkat(&fd, "").map_err(failed)?;
                if links > LINKS_MAX {
                    return Err(failed(Errno::ELOOP));
                }
                if Path::new(&target).is_absolute() {
                    let Self { at, path, data, .. } = Self::begin(self.owners)?;
                    (self.at, self.path, self.data) = (at, path, data);
                }
                parts.extend(reversed(Path::new(&target)));
                continue;
            }
            (self.at, self.path, self.data) = (fd, next, data);
        }
        self.owners.check_last(&self.path, &self.data)?;
        Ok(self.path)
    }
}

/// The names of a path, from its end.
fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn open(
    from: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
) -> Result<(OwnedFd, FileStat), OwnedPathError> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(from, name, flags, Mode::empty()).map_err(|source| io(path, source))?;
    let data = fstat(&fd).map_err(|source| io(path, source))?;
    Ok((fd, data))
}

fn io(path: &Path, source: Errno) -> OwnedPathError {
    OwnedPathError::Io { path: path.to_owned(), source: source.into() }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn is_link(data: &FileStat) -> bool {
    SFlag::from_bits_truncate(data.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    /// A user that owns nothing here.
    const OTHER: u32 = 4_000_000;

    fn owners() -> Owners {
        Owners { in_namespace: false, ..Owners::of_process() }
    }

    fn checked(owners: Owners, path: &Path) -> Result<PathBuf, OwnedPathError> {
        Walk::begin(owners)?.to(path)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn links_of_this_user_are_followed_and_what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a", root.join("relative")).unwrap();
        symlink(root.join("a"), root.join("absolute")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for (path, real) in [
            ("a/b", "a/b"),
            ("relative/b", "a/b"),
            ("absolute/b/../b", "a/b"),
            ("relative/new/folder", "a/new/folder"),
        ] {
            assert_eq!(checked(owners(), &root.join(path)).unwrap(), root.join(real), "{path}");
        }
        assert!(checked(owners(), &root.join("loop/x")).is_err());
    }

    #[test]
    fn another_users_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir(root.join("folder")).unwrap();
        let owner = fs::metadata(&root).unwrap().uid();
        // Root's folders are everybody's, so the file's own user must not be root for this.
        let other = Owners { user: OTHER, ..owners() };
        match checked(other, &root.join("folder/new")) {
            Ok(_) => assert_eq!(owner, 0),
            Err(error) => {
                let text = format!("belongs to user {owner}, not to user {OTHER}");
                assert!(error.to_string().contains(&text), "{error}");
            }
        }
    }

    #[test]
    fn folders_that_others_may_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (outer, inner) = (root.join("outer"), root.join("outer/inner"));
        fs::create_dir_all(&inner).unwrap();
        set_mode(&inner, 0o770);
        // The user's own group.
        assert!(checked(owners(), &inner).is_ok());
        let in_another = Owners { group: OTHER, ..owners() };
        let text = checked(in_another, &inner).unwrap_err().to_string();
        assert!(text.contains("may write"), "{text}");
        set_mode(&inner, 0o700);
        set_mode(&outer, 0o777);
        let text = checked(owners(), &inner).unwrap_err().to_string();
        assert_eq!(text, format!("everybody may write {}", outer.display()));
        set_mode(&outer, 0o1777);
        assert!(checked(owners(), &inner).is_ok(), "as in /tmp");
        set_mode(&outer, 0o700);
    }
}
