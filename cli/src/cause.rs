//! Why a connection fails. Clients wrap the system's error in several of their own.

use std::error::Error;

/// The innermost cause: the others only say that something failed.
pub fn root(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
