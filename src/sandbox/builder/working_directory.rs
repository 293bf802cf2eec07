//! Makes the container's working directory if it is missing, as runc does. Runs in the builder.

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

/// Makes the working directory in the container's root. One in a mount is the mount's: the shim has checked it.
///
/// # Errors
/// When it cannot be made.
pub fn make(spec: &Spec, root: &Path) -> Result<(), BuilderError> {
    let Some(cwd) = spec.process().as_ref().map(|process| process.cwd()) else { return Ok(()) };
    let mut mounts = spec.mounts().iter().flatten();
    if cwd == Path::new("/") || mounts.any(|mount| cwd.starts_with(mount.destination())) {
        return Ok(());
    }
    let made = Root::open(root).and_then(|root| root.mkdir_all(cwd, &permissions()));
    made.map(drop).map_err(|error| BuilderError::WorkingDirectory {
        path: cwd.to_owned(),
        source: system_error(&error),
    })
}

fn permissions() -> Permissions {
    Permissions::from_mode(FOLDER_MODE)
}

/// What the system said, without the library's way to it.
fn system_error(error: &pathrs::error::Error) -> io::Error {
    match error.kind() {
        ErrorKind::OsError(Some(number)) => io::Error::from_raw_os_error(number),
        _ => io::Error::other(error.to_string()),
    }
}

/// Makes a folder and those around it, below `root` whatever links are there.
///
/// # Errors
/// When one cannot be made.
pub fn folder(root: &Path, inside: &Path) -> Result<(), BuilderError> {
    if inside == Path::new("") {
        return Ok(());
    }
    let made = Root::open(root).and_then(|root| root.mkdir_all(inside, &permissions()));
    made.map(drop).map_err(|source| BuilderError::Mount {
        operation: "making the folder",
        path: inside.to_owned(),
        source: Box::new(system_error(&source)),
    })
}
