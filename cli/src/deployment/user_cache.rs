//! The user's cache of compiled modules, for `cwasi run --local`. Its native code runs as this user, so nobody else may be
//! able to replace it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::geteuid;

use crate::failure::{Exit, Failure};

/// Permission of everybody to write, and the bit by which only owners may rename.
const WORLD_WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Owner of files whose user a user namespace does not have.
const UNKNOWN_USER: u32 = 65534;
/// A user namespace's map of users, and the length of the initial one's.
const UID_MAP: &str = "/proc/self/uid_map";
const ALL_USERS: &str = "4294967295";

/// Checks that the folder `cache` and all above it are this user's or root's.
///
/// # Errors
/// The folder that is not, for the user.
pub(super) fn check(cache: &Path) -> Result<(), Failure> {
    let user = geteuid().as_raw();
    let map = fs::read_to_string(UID_MAP).unwrap_or_default();
    let in_namespace = !map.split_whitespace().any(|word| word == ALL_USERS);
    for folder in cache.ancestors() {
        let data = match fs::metadata(folder) {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(refused(cache, &format!("{}: {error}", folder.display()))),
        };
        let owner = data.uid();
        if owner != user && owner != 0 && !(in_namespace && owner == UNKNOWN_USER) {
            let why = format!("{} belongs to user {owner}", folder.display());
            return Err(refused(cache, &why));
        }
        if data.mode() & (WORLD_WRITABLE | STICKY) == WORLD_WRITABLE {
            return Err(refused(cache, &format!("everybody may write {}", folder.display())));
        }
    }
    Ok(())
}

fn refused(cache: &Path, why: &str) -> Failure {
    let text = format!(
        "native code is not loaded from {}: {why}; set XDG_CACHE_HOME to a folder of this user",
        cache.display()
    );
    Failure::text(Exit::Denied, text)
}
