//! Ed25519 keys in files, in PEM: private ones as PKCS #8 (RFC 5958), public ones as `SubjectPublicKeyInfo` (RFC 8410).

use std::path::Path;

use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use sha2::{Digest as _, Sha256};

use super::error::KeyError;
use cwasi_config::compile::is_pem;
use cwasi_config::regular_file;
use cwasi_sys::owned_path;

/// What comes before the 32 bytes of an Ed25519 key in its `SubjectPublicKeyInfo`.
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Length of a public key in bytes.
const LENGTH: usize = 32;

/// A private key.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Reads it.
    ///
    /// # Errors
    /// When the file cannot be read, or is no such key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let pem = regular_file::read(path).map_err(failed)?;
        let wrong = || KeyError::Private { path: path.to_owned() };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_error| wrong())?;
        // openssl leaves out the public part, which is derived.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.map(Self).map_err(|_rejected| wrong())
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

/// A public key whose signatures this node believes.
struct TrustedKey {
    raw: [u8; LENGTH],
    /// sha256 of its `SubjectPublicKeyInfo`, hexadecimal.
    id: String,
}

/// The public keys that a node trusts.
#[derive(Default)]
pub struct TrustedKeys {
    keys: Vec<TrustedKey>,
    problems: Vec<KeyError>,
}

impl TrustedKeys {
    /// Reads the keys of a configuration's entries. One that cannot be used trusts no one.
    #[must_use]
    pub fn read(entries: &[String]) -> Self {
        let mut all = Self::default();
        for entry in entries {
            match read_public(entry) {
                Ok(key) => all.keys.push(key),
                Err(problem) => all.problems.push(problem),
            }
        }
        all
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Their ids, in the configuration's order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    /// Files that cannot be used, each with the reason.
    #[must_use]
    pub fn problems(&self) -> &[KeyError] {
        &self.problems
    }

    /// The files that cannot be used, to be added to a sentence; empty for none.
    #[must_use]
    pub fn unusable(&self) -> String {
        self.problems.iter().map(|problem| format!("; {problem}")).collect()
    }

    /// The id of the key that has signed a message.
    pub(super) fn signer(&self, message: &[u8], signature: &[u8]) -> Option<&str> {
        let signed = |key: &&TrustedKey| {
            UnparsedPublicKey::new(&ED25519, key.raw).verify(message, signature).is_ok()
        };
        self.keys.iter().find(signed).map(|key| key.id.as_str())
    }
}

fn read_public(entry: &str) -> Result<TrustedKey, KeyError> {
    if is_pem(entry) {
        return public(entry.as_bytes()).ok_or(KeyError::Inline);
    }
    let path = Path::new(entry);
    owned_path::check(path).map_err(|source| KeyError::Owner { path: path.to_owned(), source })?;
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    let pem = regular_file::read(path).map_err(failed)?;
    public(&pem).ok_or_else(|| KeyError::Public { path: path.to_owned() })
}

/// The key that a text in PEM has.
fn public(pem: &[u8]) -> Option<TrustedKey> {
    let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).ok()?;
    let raw = der.strip_prefix(&PREFIX)?.try_into().ok()?;
    Some(TrustedKey { raw, id: hex::encode(Sha256::digest(&der)) })
}
