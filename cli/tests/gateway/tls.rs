//! TLS, client certificates and the bearer token: who is served, and who is not.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cwasi_testbed::scene::wait_for;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::AsyncReadExt as _;
use tokio_rustls::TlsConnector;

use crate::client::{ask, raw, run};
use crate::receiver::Receiver;
use crate::{Gateway, exposed, scene};

const TOKEN: &str = "correct horse battery";

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Certified {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        // Authorities of one name would be taken for each other.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn certify(&self, last_year: i32) -> Certified {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Certified { certificate, key }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }
}

impl Certified {
    fn chain(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        (vec![self.certificate.der().clone()], key)
    }

    /// As the gateway reads them.
    fn write(&self, directory: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
        std::fs::write(&certificate, self.certificate.pem()).unwrap();
        std::fs::write(&key, self.key.serialize_pem()).unwrap();
        (certificate, key)
    }
}

/// A client that trusts these servers, and shows this certificate.
fn client(servers: &Authority, shown: Option<&Certified>) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(servers.roots());
    match shown {
        None => builder.with_no_client_auth(),
        Some(certified) => {
            let (chain, key) = certified.chain();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

/// Why the server ends the connection of a client that waits for it to speak first.
fn refusal(to: SocketAddr, config: ClientConfig) -> String {
    let connector = TlsConnector::from(Arc::new(config));
    run(async move {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        match connector.connect(name, stream).await {
            // A client of TLS 1.3 is done before the server has seen its certificate.
            Ok(mut stream) => stream.read_u8().await.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    })
}

/// Status and body of one request.
fn ask_tls(to: SocketAddr, config: ClientConfig, token: &str) -> (u16, String) {
    let connector = TlsConnector::from(Arc::new(config));
    run(async move {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::post("/function/svc").header("host", "x");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from_static(b"hello"))).unwrap();
        let ended = sender.send_request(request).await.unwrap();
        let status = ended.status().as_u16();
        let body = ended.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    })
}

#[test]
fn clients_need_the_right_certificate_and_the_right_token() {
    let scene = scene("gw-tls");
    scene.start(exposed(&scene, "svc", "server", &[]));
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let [servers, clients, strangers] = ["servers", "clients", "strangers"].map(Authority::new);
    let (certificate, key) = servers.certify(4000).write(directory.path());
    let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let (ca, token) = (file("ca.crt", &clients.0.pem()), file("token", TOKEN));
    let mutual = [&tls[..], &["--client-ca", &ca, "--token-file", &token]].concat();
    let gateway = Gateway::start(&scene, &mutual);
    let to = gateway.address;
    let good = clients.certify(4000);
    let served = ask_tls(to, client(&servers, Some(&good)), TOKEN);
    assert_eq!(served, (200, "hello".to_owned()));
    for wrong in ["", "another token entirely"] {
        let (status, text) = ask_tls(to, client(&servers, Some(&good)), wrong);
        assert!(status == 401 && text.contains("Bearer"), "{wrong}: {status} {text}");
    }
    for (what, shown, alert) in [
        ("none", None, "CertificateRequired"),
        ("of another authority", Some(strangers.certify(4000)), "UnknownCA"),
        ("of the servers' authority", Some(servers.certify(4000)), "UnknownCA"),
        ("expired", Some(clients.certify(2020)), "CertificateExpired"),
    ] {
        let refused = refusal(to, client(&servers, shown.as_ref()));
        assert!(refused.contains(alert), "{what}: {refused}");
    }
    let distrust = refusal(to, client(&strangers, Some(&good)));
    assert!(distrust.contains("UnknownIssuer"), "{distrust}");
    // Neither plain HTTP nor noise gets an HTTP response, or keeps others from theirs.
    for plain in ["GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", "\0\0\0\0\0\0\0\0"] {
        let answer = raw(to, plain.as_bytes());
        assert!(!answer.contains("HTTP/1.1"), "{answer}");
    }
    assert_eq!(ask_tls(to, client(&servers, Some(&good)), TOKEN).0, 200);
    gateway.stop();
    let gateway = Gateway::start(&scene, &tls);
    assert_eq!(ask_tls(gateway.address, client(&servers, None), "").0, 200, "TLS alone");
    gateway.stop();
}

#[test]
fn tls_callbacks_need_a_trusted_certificate() {
    let scene = scene("gw-https");
    scene.start(exposed(&scene, "svc", "server", &[]));
    let directory = tempfile::tempdir().unwrap();
    let [known, unknown] = ["known", "unknown"].map(Authority::new);
    let roots = directory.path().join("system.pem");
    std::fs::write(&roots, known.0.pem()).unwrap();
    let kept = directory.path().join("kept");
    let server = |authority: &Authority| {
        let (chain, key) = authority.certify(4000).chain();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
    };
    let (good, bad) = (Receiver::encrypted(server(&known)), Receiver::encrypted(server(&unknown)));
    let arguments = ["--callback-allow", "127.0.0.1", "--callback-dir", kept.to_str().unwrap()];
    let gateway = Gateway::with_environment(&scene, ("SSL_CERT_FILE", &roots), &arguments);
    let defer = |receiver: &Receiver| {
        let url = receiver.url("/hook").replace("http:", "https:");
        let request = Request::post("/async-function/svc").header("host", "x");
        let request = request.header("x-callback-url", url).body(Full::from("secret")).unwrap();
        assert_eq!(run(crate::client::send(gateway.address, request)).status.as_u16(), 202);
    };
    defer(&bad);
    defer(&good);
    assert_eq!(good.wait(1)[0].text(), "secret");
    // Tried again, as the receiver may get another certificate; nothing was sent.
    wait_for("one call to be done", || {
        (std::fs::read_dir(&kept).unwrap().count() == 2).then_some(())
    });
    assert!(bad.received().is_empty());
    assert_eq!(ask(gateway.address, "GET", "/healthz", b"").status.as_u16(), 200);
    gateway.stop();
}
