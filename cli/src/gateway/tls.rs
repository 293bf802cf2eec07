//! TLS of the gateway, with client certificates if the operator wants them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::failure::{Exit, Failure};

/// An acceptor for a certificate and its key; `None` without them.
///
/// # Errors
/// When a file cannot be used, or clients are to have certificates without TLS.
pub(super) fn acceptor(
    certificate: Option<&(PathBuf, PathBuf)>,
    client_ca: Option<&Path>,
) -> Result<Option<TlsAcceptor>, Failure> {
    let Some((certificate, key)) = certificate else {
        return match client_ca {
            None => Ok(None),
            Some(_) => Err(Failure::text(
                Exit::Usage,
                "--client-ca needs --tls-cert and --tls-key: clients show certificates in TLS only",
            )),
        };
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::new(Exit::Failed, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(path)? {
                roots.add(root).map_err(|error| unusable(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| unusable(path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let mut config =
        builder.with_single_cert(chain, secret).map_err(|error| unusable(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?.collect();
    let all = all.map_err(|error| unusable(path, &error))?;
    if all.is_empty() {
        return Err(unusable(path, &"it has no certificate"));
    }
    Ok(all)
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::text(Exit::Data, format!("{}: {error}", path.display()))
}
