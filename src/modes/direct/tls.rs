//! TLS 1.3 between two shims. Both sides prove their node, in one of two ways that never meet on a connection:
//!
//! - A raw public key (RFC 7250): no name, no expiry and no authority. The caller knows the callee's key from Redis and
//!   accepts no other one; the callee learns the caller's and has to ask who it is.
//! - A certificate of the operator's authority with the node's name ([`super::certificates`]). The caller knows the
//!   name, and accepts no other node's certificate. The callee accepts all of the authority, and checks that a call
//!   comes from the node that it names.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{
    AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption, verify_server_name,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ParsedCertificate, ResolvesServerCert};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::certificates::CertificateSettings;
use super::ciphers::provider;
use super::key::NodeKey;
use super::rotation::CurrentCertificate;
use super::verifiers::{AnyKey, CertificateOf, PinnedKey};
use cwasi_wire::network::NodeProof;

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
    provider: Arc<CryptoProvider>,
    own: Own,
}

/// What proves this node.
#[derive(Clone, Debug)]
enum Own {
    Key {
        key: NodeKey,
        server: Arc<ServerConfig>,
    },
    Certificate(Arc<CurrentCertificate>),
    /// Nothing; why.
    None(String),
}

/// What the other side of a connection has proved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proven {
    /// A public key: whose it is, its user has to ask.
    Key(Vec<u8>),
    /// A certificate of an authority of ours.
    Certificate(CertificateDer<'static>),
}

impl Proven {
    /// True for a certificate of the node with this name.
    #[must_use]
    pub fn is_certified(&self, node: &str) -> bool {
        let Self::Certificate(certificate) = self else { return false };
        let Ok(name) = ServerName::try_from(node) else { return false };
        let parsed = ParsedCertificate::try_from(certificate);
        parsed.is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
    }
}

/// Why this node makes no connection to another one, whatever that one answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("its node proves a key, and this one accepts certificates only (link_ca)")]
    Key,
    #[error("its node proves a certificate, and this one has no link_ca")]
    Certificate,
    #[error("this node cannot prove itself: {0}")]
    Nothing(String),
}

impl Tls {
    /// A node that proves a key.
    ///
    /// # Errors
    /// When rustls does not take the key.
    pub fn new(key: NodeKey) -> Result<Self, Error> {
        let provider = provider();
        let any = AnyKey { algorithms: provider.signature_verification_algorithms };
        let resolver = AlwaysResolvesServerRawPublicKeys::new(key.certified());
        let server = server_config(&provider, Arc::new(any), Arc::new(resolver))?;
        Ok(Self { provider, own: Own::Key { key, server } })
    }

    /// A node that proves a certificate, which may be renewed in its files. If they are none now, the log says so, and
    /// connections fail until they are.
    #[must_use]
    pub fn with_certificate(settings: CertificateSettings) -> Self {
        let provider = provider();
        let current = CurrentCertificate::new(settings, Arc::clone(&provider));
        Self { provider, own: Own::Certificate(Arc::new(current)) }
    }

    /// A node that can prove nothing, and why: it makes no connections.
    #[must_use]
    pub fn without_proof(reason: String) -> Self {
        Self { provider: provider(), own: Own::None(reason) }
    }

    /// How this node proves itself, for others.
    ///
    /// # Errors
    /// When it cannot.
    pub fn proof(&self) -> Result<NodeProof, Mismatch> {
        match &self.own {
            Own::Key { key, .. } => Ok(NodeProof::Key(key.public().to_vec())),
            Own::Certificate(current) => {
                Ok(NodeProof::Certificate { node: current.node().to_owned() })
            }
            Own::None(reason) => Err(Mismatch::Nothing(reason.clone())),
        }
    }

    /// Checks that connections to a node with this proof are possible.
    ///
    /// # Errors
    /// Why they are not.
    pub fn check(&self, other: &NodeProof) -> Result<(), Mismatch> {
        match (&self.own, other) {
            (Own::Key { .. }, NodeProof::Key(_)) => Ok(()),
            (Own::Certificate(current), NodeProof::Certificate { .. }) => {
                current.get().map(drop).map_err(Mismatch::Nothing)
            }
            (Own::Certificate(_), NodeProof::Key(_)) => Err(Mismatch::Key),
            (Own::Key { .. }, NodeProof::Certificate { .. }) => Err(Mismatch::Certificate),
            (Own::None(reason), _) => Err(Mismatch::Nothing(reason.clone())),
        }
    }

    /// Number of what this node proves now. A connection with an older one is not used for further calls.
    #[must_use]
    pub fn number(&self) -> u64 {
        match &self.own {
            Own::Certificate(current) => current.get().map_or(0, |(_, number)| number),
            Own::Key { .. } | Own::None(_) => 0,
        }
    }

    /// The caller's side of a new connection to a shim whose node proves itself by this.
    ///
    /// # Errors
    /// When the other side proves something else or speaks another protocol, or takes longer than [`HANDSHAKE_MAX`].
    pub async fn connect(
        &self,
        stream: TcpStream,
        shim: &str,
        proof: &NodeProof,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        self.check(proof).map_err(io::Error::other)?;
        let config = self.client_config(proof)?;
        let name = ServerName::try_from(server_name(shim)).map_err(io::Error::other)?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        timeout(HANDSHAKE_MAX, connecting).await.map_err(|_elapsed| late())?
    }

    fn client_config(&self, proof: &NodeProof) -> io::Result<ClientConfig> {
        let (verifier, resolver): (Arc<dyn ServerCertVerifier>, Arc<dyn ResolvesClientCert>) =
            match (&self.own, proof) {
                (Own::Key { key: own, .. }, NodeProof::Key(key)) => {
                    let algorithms = self.provider.signature_verification_algorithms;
                    let resolver = AlwaysResolvesClientRawPublicKeys::new(own.certified());
                    (Arc::new(PinnedKey { key: key.clone(), algorithms }), Arc::new(resolver))
                }
                (Own::Certificate(current), NodeProof::Certificate { node }) => {
                    let (certificate, _number) = current.get().map_err(io::Error::other)?;
                    let node = ServerName::try_from(node.clone()).map_err(io::Error::other)?;
                    let verifier = Arc::clone(&certificate.servers);
                    let resolver = SingleCertAndKey::from(Arc::clone(&certificate.own));
                    (Arc::new(CertificateOf { node, verifier }), Arc::new(resolver))
                }
                _ => return Err(io::ErrorKind::Unsupported.into()),
            };
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(resolver);
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The callee's side of a connection, and what the other side has proved.
    ///
    /// # Errors
    /// When the other side proves nothing that counts or speaks another protocol, or takes longer than
    /// [`HANDSHAKE_MAX`].
    pub async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(server::TlsStream<TcpStream>, Proven)> {
        let config = match &self.own {
            Own::Key { server, .. } => Arc::clone(server),
            Own::Certificate(current) => {
                let (certificate, _number) = current.get().map_err(io::Error::other)?;
                let resolver = SingleCertAndKey::from(Arc::clone(&certificate.own));
                let clients = Arc::clone(&certificate.clients);
                server_config(&self.provider, clients, Arc::new(resolver))
                    .map_err(io::Error::other)?
            }
            Own::None(reason) => return Err(io::Error::other(reason.clone())),
        };
        let accepting = TlsAcceptor::from(config).accept(stream);
        let stream = timeout(HANDSHAKE_MAX, accepting).await.map_err(|_elapsed| late())??;
        let connection = stream.get_ref().1;
        if connection.alpn_protocol() != Some(PROTOCOL) {
            return Err(io::Error::other("it does not say which protocol it speaks"));
        }
        let proven = connection.peer_certificates().and_then(<[_]>::first).cloned();
        let proven = proven.map(|proven| match &self.own {
            Own::Certificate(_) => Proven::Certificate(proven),
            Own::Key { .. } | Own::None(_) => Proven::Key(proven.to_vec()),
        });
        proven.map(|it| (stream, it)).ok_or_else(|| io::Error::other("it has proved nothing"))
    }
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    clients: Arc<dyn ClientCertVerifier>,
    own: Arc<dyn ResolvesServerCert>,
) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(own);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A connection is kept instead.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake takes too long")
}
