//! The user's cache of compiled modules, for `cwasi run --local`. Its native code runs as this user, so nobody else may be
//! able to replace it.

use std::path::Path;

use cwasi_sys::owned_path;

use crate::failure::{Exit, Failure};

/// Checks that the folder `cache` and all above it are this user's or root's.
///
/// # Errors
/// The folder that is not, for the user.
pub(super) fn check(cache: &Path) -> Result<(), Failure> {
    owned_path::check(cache).map(drop).map_err(|error| refused(cache, &error.to_string()))
}

fn refused(cache: &Path, why: &str) -> Failure {
    let text = format!(
        "native code is not loaded from {}: {why}; set XDG_CACHE_HOME to a folder of this user",
        cache.display()
    );
    Failure::text(Exit::Denied, text)
}
