//! The certificates of authorities by which servers of HTTPS are verified. Runs in builder and workers.
//!
//! A worker reads those of its container with its first HTTPS request: a container that has such a file trusts what is
//! in it, as other programs in containers do. A container without one trusts what the node does. Only the builder sees
//! the node's file, so it reads it when it loads the component.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use cwasi_vm::sockets::RefusedAccess;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::Error;

use super::super::rules::Rules;

/// Where distributions keep the certificates, in the order in which they are looked for: Debian, Ubuntu and Arch;
/// Fedora and Red Hat; SUSE; Alpine.
const FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Most bytes of a file.
const FILE_MAX: u64 = 4 << 20;
/// The protocol that requests speak.
const PROTOCOL: &[u8] = b"http/1.1";

/// The certificates of one function.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// The node's file, in PEM; empty without one.
    node: Vec<u8>,
    /// Made with the worker's first HTTPS request; `None` without certificates.
    config: OnceLock<Option<Arc<ClientConfig>>>,
}

impl Roots {
    /// With the file that this process sees.
    pub(super) fn of_node() -> Self {
        let files = FILES.iter().map(|path| read(Path::new(path)));
        let node = files.into_iter().find(|bytes| !bytes.is_empty()).unwrap_or_default();
        Self { node, config: OnceLock::new() }
    }

    /// Connects to servers that an authority of the container or node vouches for.
    ///
    /// # Errors
    /// When there are no authorities; the log says so.
    pub(super) fn connector(&self, rules: &Rules) -> Result<TlsConnector, Error> {
        let config = self.config.get_or_init(|| self.config(&FILES.map(Path::new)));
        let config = config.as_ref().ok_or_else(|| {
            rules.sockets().log(RefusedAccess::NoCertificates(&FILES));
            Error::TlsCertificateError
        })?;
        Ok(TlsConnector::from(Arc::clone(config)))
    }

    /// The first of the container's `files` with a certificate counts, else the node's.
    fn config(&self, files: &[&Path]) -> Option<Arc<ClientConfig>> {
        let mut of_container = files.iter().map(|path| store(&read(path)));
        let roots = of_container.find(|roots| !roots.is_empty());
        let roots = roots.unwrap_or_else(|| store(&self.node));
        if roots.is_empty() {
            return None;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().ok()?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Some(Arc::new(config))
    }
}

/// The certificates of a file; those that cannot be read are left out.
fn store(pem: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
    roots
}

/// The bytes of a regular file; empty if it cannot be read.
fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|metadata| metadata.is_file())
    {
        // An error keeps the certificates that were read before it.
        let _partly = file.take(FILE_MAX).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> String {
        rcgen::generate_simple_self_signed(["authority.test".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn the_files_of_a_container_come_before_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let [empty, broken, good] =
            ["empty", "broken", "good"].map(|name| folder.path().join(name));
        std::fs::write(&empty, "").unwrap();
        std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .unwrap();
        std::fs::write(&good, format!("# ours\n{}", authority())).unwrap();
        let missing = folder.path().join("missing");
        let without = Roots::default();
        assert!(without.config(&[&missing, &empty, &broken, folder.path()]).is_none());
        assert!(without.config(&[&missing, &broken, &good]).is_some());
        let with = Roots { node: authority().into_bytes(), config: OnceLock::new() };
        assert!(with.config(&[&missing, &broken]).is_some());
    }

    #[test]
    fn certificates_that_cannot_be_read_are_left_out() {
        let text = format!("{}nonsense\n{}", authority(), authority());
        assert_eq!(store(text.as_bytes()).len(), 2);
        assert!(store(b"no certificates").is_empty());
    }
}
