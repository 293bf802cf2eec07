//! The key of a node: made at its first start, kept in its state directory, for root alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use cwasi_sys::random::bytes16;

/// Its file in the state directory: PKCS #8 (RFC 5958), DER.
const KEY_FILE: &str = "link.key";

/// What comes before the 32 bytes of an Ed25519 key in its `SubjectPublicKeyInfo` (RFC 8410).
const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The node's key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the node's key {}: {operation} failed: {source}", path.display())]
    File {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the node's key {} is not one: remove it, and restart the node's functions", path.display())]
    Invalid { path: PathBuf },
    #[error("no random bytes for a key")]
    Random,
}

/// An Ed25519 key. Clones share it.
#[derive(Clone, Debug)]
pub struct NodeKey {
    certified: Arc<CertifiedKey>,
    public: Vec<u8>,
}

impl NodeKey {
    /// The key of the node with this state directory; the first process makes it.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is no key.
    pub fn of_node(state_dir: &Path) -> Result<Self, KeyError> {
        Self::in_file(&state_dir.join(KEY_FILE))
    }

    /// The key in this file; the first process makes it.
    ///
    /// # Errors
    /// As [`Self::of_node`].
    pub fn in_file(path: &Path) -> Result<Self, KeyError> {
        let failed = |operation| {
            let path = path.to_owned();
            move |source| KeyError::File { path, operation, source }
        };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(path)?;
                fs::read(path).map_err(failed("reading"))?
            }
            Err(error) => return Err(failed("reading")(error)),
        };
        Self::of_bytes(bytes).ok_or_else(|| KeyError::Invalid { path: path.to_owned() })
    }

    /// A key that lives as long as this value.
    ///
    /// # Errors
    /// Without random bytes.
    pub fn fresh() -> Result<Self, KeyError> {
        Self::of_bytes(generate()?).ok_or(KeyError::Random)
    }

    fn of_bytes(bytes: Vec<u8>) -> Option<Self> {
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(bytes)).ok()?;
        let public = signing.public_key()?.to_vec();
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.clone())], signing);
        Some(Self { certified: Arc::new(certified), public })
    }

    /// The public key: DER of a `SubjectPublicKeyInfo`.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Its 32 bytes.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        self.public.strip_prefix(&ED25519).unwrap_or_default()
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

/// The public key with these 32 bytes, as [`NodeKey::public`] has it.
#[must_use]
pub fn public_of(raw: &[u8; 32]) -> Vec<u8> {
    [&ED25519[..], raw].concat()
}

fn generate() -> Result<Vec<u8>, KeyError> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    made.map(|key| key.as_ref().to_vec()).map_err(|_unspecified| KeyError::Random)
}

/// Writes a new key, unless another process was first.
fn make(path: &Path) -> Result<(), KeyError> {
    let draft = path.with_extension(format!("{}.new", hex::encode(bytes16())));
    let failed = |operation| {
        let path = path.to_owned();
        move |source| KeyError::File { path, operation, source }
    };
    let bytes = generate()?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&draft).and_then(|mut file| file.write_all(&bytes));
    written.map_err(failed("writing"))?;
    // Whole at once, and never in place of another one.
    let linked = match fs::hard_link(&draft, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    fs::remove_file(&draft).map_err(failed("removing its draft"))?;
    linked.map_err(failed("writing"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_node_has_one_key_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let threads = [(); 8].map(|()| {
            let dir = dir.path().to_owned();
            std::thread::spawn(move || NodeKey::of_node(&dir).unwrap().public().to_vec())
        });
        let keys = threads.map(|thread| thread.join().unwrap());
        assert!(keys.iter().all(|key| *key == keys[0]));
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap()).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(names[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_public_key_is_known_by_its_32_bytes() {
        let key = NodeKey::fresh().unwrap();
        assert_eq!(public_of(key.raw().try_into().unwrap()), key.public());
    }

    #[test]
    fn a_file_that_is_no_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), "no key").unwrap();
        let error = NodeKey::of_node(dir.path()).unwrap_err().to_string();
        assert!(error.contains("link.key is not one: remove it"), "{error}");
    }
}
