//! TLS 1.3 between two shims. Both sides prove the key of their node: a raw public key (RFC 7250), no certificate, so
//! there is no name, no expiry and no authority. The caller knows the callee's key from Redis and accepts no other one;
//! the callee learns the caller's and has to ask who it is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::key::NodeKey;

/// The protocol on these connections, agreed on by ALPN: another version has another name.
pub const PROTOCOL: &[u8] = b"cwasi-link/1";
/// Longest handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
/// After the shim's name in the server name.
const SUFFIX: &str = ".cwasi";

/// In place of a shim's name: the one that listens.
pub const ANY_SHIM: &str = "any-shim";

/// The server name of a shim.
#[must_use]
pub fn server_name(shim: &str) -> String {
    format!("{shim}{SUFFIX}")
}

/// The shim that a server name means.
#[must_use]
pub fn shim_of(server_name: &str) -> Option<&str> {
    let shim = server_name.strip_suffix(SUFFIX)?;
    // It becomes the name of a file.
    let is_name = !shim.is_empty() && shim.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_name || shim == ANY_SHIM).then_some(shim)
}

/// Both ends' settings of one node. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls {
    key: NodeKey,
    provider: Arc<CryptoProvider>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// # Errors
    /// When rustls does not take the key.
    pub fn new(key: NodeKey) -> Result<Self, Error> {
        let mut provider = rustls::crypto::ring::default_provider();
        // The faster of the two AES ones: payloads are large, and both are sound.
        provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
        let provider = Arc::new(provider);
        let any = AnyKey { algorithms: provider.signature_verification_algorithms };
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(any))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key.certified())));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A connection is kept instead.
        server.send_tls13_tickets = 0;
        Ok(Self { key, provider, server: Arc::new(server) })
    }

    /// The public key of this node.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        self.key.public()
    }

    /// The caller's side of a new connection to a shim whose node has this key.
    ///
    /// # Errors
    /// When the other side has another key or speaks another protocol, or takes longer than [`HANDSHAKE_MAX`].
    pub async fn connect(
        &self,
        stream: TcpStream,
        shim: &str,
        key: &[u8],
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let algorithms = self.provider.signature_verification_algorithms;
        let pinned = PinnedKey { key: key.to_vec(), algorithms };
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                self.key.certified(),
            )));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(server_name(shim)).map_err(io::Error::other)?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        timeout(HANDSHAKE_MAX, connecting).await.map_err(|_elapsed| late())?
    }

    /// The callee's side of a connection, and the key that the other side has proved.
    ///
    /// # Errors
    /// When the other side has no key or speaks another protocol, or takes longer than [`HANDSHAKE_MAX`].
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(server::TlsStream<TcpStream>, Vec<u8>)> {
        let accepting = TlsAcceptor::from(Arc::clone(&self.server)).accept(stream);
        let stream = timeout(HANDSHAKE_MAX, accepting).await.map_err(|_elapsed| late())??;
        let connection = stream.get_ref().1;
        if connection.alpn_protocol() != Some(PROTOCOL) {
            return Err(io::Error::other("it does not say which protocol it speaks"));
        }
        let key = connection.peer_certificates().and_then(<[_]>::first).map(|key| key.to_vec());
        key.map(|key| (stream, key)).ok_or_else(|| io::Error::other("it has no key"))
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake takes too long")
}

/// Accepts one key.
#[derive(Debug)]
struct PinnedKey {
    key: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Accepts every key whose owner proves it: its user asks afterwards whose it is.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

/// What both sides of rustls ask about a raw public key; `algorithms` is a field.
macro_rules! raw_key_checks {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not offered".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if end_entity.as_ref() == self.key {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    raw_key_checks!();
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    raw_key_checks!();
}
