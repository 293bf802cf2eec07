//! Digests of content. Runs in the shim daemon.

use sha2::{Digest as _, Sha256, Sha512};

/// `sha256:…` of `bytes`.
pub(super) fn of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Checks that `bytes` have the digest by which they were asked for.
///
/// # Errors
/// When they have another one, or its algorithm is unknown.
pub(super) fn check(digest: &str, bytes: &[u8]) -> Result<(), String> {
    let found = match digest.split_once(':') {
        Some(("sha256", _)) => of(bytes),
        Some(("sha512", _)) => format!("sha512:{}", hex::encode(Sha512::digest(bytes))),
        _ => return Err(format!("content {digest} has a digest of an unknown algorithm")),
    };
    if found == digest {
        return Ok(());
    }
    Err(format!(
        "content {digest} is damaged: its bytes have the digest {found}; remove the image and pull it again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_the_digest_that_was_asked_for() {
        let good = of(b"module");
        check(&good, b"module").unwrap();
        let long = format!("sha512:{}", hex::encode(Sha512::digest(b"module")));
        check(&long, b"module").unwrap();
        let error = check(&good, b"other").unwrap_err();
        assert!(error.contains(&good) && error.contains(&of(b"other")), "{error}");
        for unknown in ["", "module", "md5:00"] {
            assert!(check(unknown, b"module").unwrap_err().contains("unknown algorithm"));
        }
    }
}
