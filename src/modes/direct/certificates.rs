//! The certificate of a node whose operator has a PKI: three PEM files, checked as other nodes will check them.
//!
//! A certificate is a node's if it has the node's name among its subject alternative names. So no other certificate of
//! the same authority proves that node.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError as Fault, Error, RootCertStore};

/// Longest file.
const FILE_MAX: u64 = 1 << 20;
/// Most certificates between a node's and its authority's that are asked for their end.
const CHAIN_MAX: usize = 16;
/// Far beyond the end of any certificate: 9999-12-31.
const FAR_SECONDS: u64 = 253_402_300_799;

/// Settings that name a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Ca,
    Certificate,
    Key,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ca => "link_ca",
            Self::Certificate => "link_cert",
            Self::Key => "link_key",
        })
    }
}

/// Where a node's certificate is, and which node that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// Authorities of all nodes.
    pub ca: PathBuf,
    /// The node's certificate, then those between it and an authority's.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The node's name.
    pub node: String,
}

/// The files are no certificate of the node. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{setting} {} cannot be read: {reason}", path.display())]
    File { setting: Setting, path: PathBuf, reason: String },
    #[error("{setting} {} holds no {what} in PEM", path.display())]
    Empty { setting: Setting, path: PathBuf, what: &'static str },
    #[error("link_ca {} has a certificate that is no authority's: {reason}", path.display())]
    Authority { path: PathBuf, reason: String },
    #[error("link_key {} has another type than Ed25519, ECDSA (P-256, P-384) and RSA", path.display())]
    KeyType { path: PathBuf },
    #[error("link_cert {} is of another key than link_key {}", certificate.display(), key.display())]
    OtherKey { certificate: PathBuf, key: PathBuf },
    #[error("link_cert {} is not signed by an authority of link_ca {}", certificate.display(), ca.display())]
    OtherAuthority { certificate: PathBuf, ca: PathBuf },
    #[error("link_cert {} has ended {}: renew it", path.display(), time(*ended))]
    Ended { path: PathBuf, ended: UnixTime },
    #[error("link_cert {} begins {}: is the clock right?", path.display(), time(*begins))]
    Early { path: PathBuf, begins: UnixTime },
    #[error("link_cert {} has no subject alternative name {node}, the name of this node", path.display())]
    OtherNode { path: PathBuf, node: String },
    #[error("node = {node:?} can be no name in a certificate")]
    NodeName { node: String },
    #[error("link_cert {} cannot be used by servers and clients: {reason}", path.display())]
    Other { path: PathBuf, reason: String },
}

/// A certificate that proves its node, and what is accepted from others.
#[derive(Clone, Debug)]
pub(crate) struct NodeCertificate {
    pub own: Arc<CertifiedKey>,
    pub servers: Arc<WebPkiServerVerifier>,
    pub clients: Arc<dyn ClientCertVerifier>,
    /// End of the first certificate of the chain that ends.
    pub ends: SystemTime,
}

/// A point in time, for people.
fn time(time: UnixTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(system_time(time))
}

fn system_time(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

/// When the certificate of a node ends.
///
/// # Errors
/// When its files are no certificate of it now.
pub fn end_of(settings: &CertificateSettings) -> Result<SystemTime, CertificateError> {
    load(settings, &super::ciphers::provider(), UnixTime::now()).map(|found| found.ends)
}

/// Reads and checks a node's certificate.
pub(crate) fn load(
    settings: &CertificateSettings,
    provider: &Arc<CryptoProvider>,
    now: UnixTime,
) -> Result<NodeCertificate, CertificateError> {
    let CertificateSettings { ca, certificate: path, key, node } = settings;
    let roots = Arc::new(authorities(ca)?);
    let chain = certificates(Setting::Certificate, path)?;
    let secret = PrivateKeyDer::from_pem_slice(&read(Setting::Key, key)?);
    let no_key = |_| CertificateError::Empty {
        setting: Setting::Key,
        path: key.clone(),
        what: "private key",
    };
    let signing = provider.key_provider.load_private_key(secret.map_err(no_key)?);
    let signing = signing.map_err(|_| CertificateError::KeyType { path: key.clone() })?;
    let own = CertifiedKey::new(chain, signing);
    match own.keys_match() {
        Ok(()) => {}
        Err(Error::InconsistentKeys(_)) => {
            let (certificate, key) = (path.clone(), key.clone());
            return Err(CertificateError::OtherKey { certificate, key });
        }
        Err(error) => return Err(other(path, &error)),
    }
    let no_verifier = |reason: rustls::client::VerifierBuilderError| CertificateError::Authority {
        path: ca.clone(),
        reason: reason.to_string(),
    };
    let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider.clone());
    let servers = servers.build().map_err(no_verifier)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    // Nodes have one certificate: there is nothing to choose by the authorities' names.
    let clients = clients.clear_root_hint_subjects().build().map_err(no_verifier)?;
    let name = ServerName::try_from(node.clone());
    let name = name.map_err(|_| CertificateError::NodeName { node: node.clone() })?;
    let (leaf, between) = own.cert.split_first().expect("the file has a certificate");
    let is_valid = |at| servers.verify_server_cert(leaf, between, &name, &[], at).map(drop);
    let fault = |error| fault_of(settings, error);
    is_valid(now).map_err(fault)?;
    clients.verify_client_cert(leaf, between, now).map_err(fault)?;
    // Who verifies says when a certificate ends, of the whole chain.
    let mut ends = UnixTime::since_unix_epoch(Duration::from_secs(FAR_SECONDS));
    for _ in 0..CHAIN_MAX {
        let Err(Error::InvalidCertificate(Fault::ExpiredContext { not_after, .. })) =
            is_valid(ends)
        else {
            break;
        };
        ends = not_after;
    }
    Ok(NodeCertificate { own: Arc::new(own), servers, clients, ends: system_time(ends) })
}

/// Why our own certificate would not be accepted.
fn fault_of(settings: &CertificateSettings, error: Error) -> CertificateError {
    let CertificateSettings { ca, certificate: path, node, .. } = settings;
    let path = path.clone();
    let Error::InvalidCertificate(fault) = error else { return other(&path, &error) };
    match fault {
        Fault::ExpiredContext { not_after, .. } => {
            CertificateError::Ended { path, ended: not_after }
        }
        Fault::NotValidYetContext { not_before, .. } => {
            CertificateError::Early { path, begins: not_before }
        }
        Fault::UnknownIssuer | Fault::BadSignature => {
            CertificateError::OtherAuthority { certificate: path, ca: ca.clone() }
        }
        Fault::NotValidForName | Fault::NotValidForNameContext { .. } => {
            CertificateError::OtherNode { path, node: node.clone() }
        }
        fault => other(&path, &Error::InvalidCertificate(fault)),
    }
}

fn other(path: &Path, error: &Error) -> CertificateError {
    CertificateError::Other { path: path.to_owned(), reason: error.to_string() }
}

fn authorities(path: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(Setting::Ca, path)? {
        let failed = |error: Error| CertificateError::Authority {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        roots.add(root).map_err(failed)?;
    }
    Ok(roots)
}

fn certificates(
    setting: Setting,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let bytes = read(setting, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| CertificateError::File {
        setting,
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    if all.is_empty() {
        return Err(CertificateError::Empty {
            setting,
            path: path.to_owned(),
            what: "certificate",
        });
    }
    Ok(all)
}

fn read(setting: Setting, path: &Path) -> Result<Vec<u8>, CertificateError> {
    let mut bytes = Vec::new();
    let reading = File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    reading.map_err(|error| CertificateError::File {
        setting,
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
