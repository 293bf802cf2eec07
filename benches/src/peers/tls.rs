//! TLS 1.3 between two processes, by rustls, over loopback or from one network namespace to another: what encrypted
//! bytes cost that nothing else handles. A server's end is its stdin, so that it ends with its client.

use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use super::tcp::connected;
use super::uds::{Copying, serve_copies};
use super::{Buffer, Peer};

/// The server's name.
const NAME: &str = "localhost";
/// Files in the peer's folder.
const CERTIFICATE: &str = "certificate";
const KEY: &str = "key";

/// A client's connections.
pub type Encrypted = Copying<StreamOwned<ClientConnection, TcpStream>>;

/// Connects to new servers. The peer's address is a folder for their certificate.
pub fn start(peer: &Peer) -> Result<Encrypted> {
    let config = Arc::new(client_config(&peer.address)?);
    let connect = |_| {
        let (ours, server) = connected(peer)?;
        let connection = ClientConnection::new(Arc::clone(&config), server_name()?)?;
        Ok((StreamOwned::new(connection, ours), server))
    };
    Ok(Copying::over((0..peer.servers).map(connect).collect::<Result<_>>()?))
}

/// The name in the servers' certificate.
pub fn server_name() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from(NAME)?)
}

/// A client of servers with a new certificate, which this writes into the folder.
pub fn client_config(folder: &str) -> Result<ClientConfig> {
    let folder = Path::new(folder);
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("a certificate")?;
    std::fs::write(folder.join(CERTIFICATE), made.cert.der())?;
    std::fs::write(folder.join(KEY), made.signing_key.serialize_der())?;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    Ok(ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// Serves copies until the client is gone.
pub fn serve(folder: &str, buffer: Buffer) -> Result<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("our connection")?;
    let connection = ServerConnection::new(Arc::new(server_config(folder)?))?;
    serve_copies(buffer, StreamOwned::new(connection, TcpStream::from(stdin)))
}

/// A server with the certificate in the folder.
pub fn server_config(folder: &str) -> Result<ServerConfig> {
    let read = |name| std::fs::read(Path::new(folder).join(name)).context("the certificate");
    let certificate = CertificateDer::from(read(CERTIFICATE)?);
    let key = PrivatePkcs8KeyDer::from(read(KEY)?);
    Ok(ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())?)
}
