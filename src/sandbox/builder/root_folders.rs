//! Folders that are made below a container's root: its working directory, as runc does, and mount points. Links
//! in the root lead nowhere out of it (`pathrs`). Runs in the builder.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use libcontainer::oci_spec::runtime::Spec;
use pathrs::Root;
use pathrs::error::ErrorKind;

use super::BuilderError;

/// Access to a folder that is made.
const FOLDER_MODE: u32 = 0o755;

/// Makes the working directory in the container's root if it is missing. One in a mount is the mount's: the shim has
/// checked it.
///
/// # Errors
/// When it cannot be made.
pub fn make_working_directory(spec: &Spec, root: &Path) -> Result<(), BuilderError> {
    let Some(cwd) = spec.process().as_ref().map(|process| process.cwd()) else { return Ok(()) };
    let mut mounts = spec.mounts().iter().flatten();
    if cwd == Path::new("/") || mounts.any(|mount| cwd.starts_with(mount.destination())) {
        return Ok(());
    }
    make_below(root, cwd)
        .map_err(|source| BuilderError::WorkingDirectory { path: cwd.to_owned(), source })
}

/// Makes a folder and those around it below `root`.
///
/// # Errors
/// When one cannot be made.
pub fn make_folder(root: &Path, inside: &Path) -> Result<(), BuilderError> {
    if inside == Path::new("") {
        return Ok(());
    }
    make_below(root, inside).map_err(|source| BuilderError::Mount {
        operation: "making the folder",
        path: inside.to_owned(),
        source: source.into(),
    })
}

/// The error is what the system said, without the library's way to it.
fn make_below(root: &Path, inside: &Path) -> io::Result<()> {
    let permissions = Permissions::from_mode(FOLDER_MODE);
    let made = Root::open(root).and_then(|root| root.mkdir_all(inside, &permissions));
    made.map(drop).map_err(|error| match error.kind() {
        ErrorKind::OsError(Some(number)) => io::Error::from_raw_os_error(number),
        _ => io::Error::other(error.to_string()),
    })
}
