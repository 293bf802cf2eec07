//! Certificates that are a node's, and what is said of others.

use std::fs;

use cwasi_testbed::authority::Authority;

use super::*;
use crate::ciphers::provider;

/// Files of node `edge` in a folder of their own, with no certificate in them.
fn files() -> (tempfile::TempDir, CertificateSettings) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (ca, certificate, key) = (path("ca.pem"), path("node.pem"), path("node.key"));
    (dir, CertificateSettings { ca, certificate, key, node: "edge".to_owned() })
}

fn loaded(settings: &CertificateSettings) -> Result<NodeCertificate, CertificateError> {
    load(settings, &provider(), UnixTime::now())
}

fn fault(settings: &CertificateSettings) -> String {
    loaded(settings).unwrap_err().to_string()
}

#[test]
fn a_chain_ends_with_the_first_of_its_certificates() {
    let (_dir, settings) = files();
    let root = Authority::new("root");
    let between = root.below("between", 3000);
    fs::write(&settings.ca, root.pem()).unwrap();
    for (last_year, end) in [(2900, "2900-12-31"), (3500, "3000-12-31")] {
        let node = between.certify_until("edge", last_year);
        node.write(&settings.certificate, &settings.key, &between.pem());
        let ends = humantime::format_rfc3339(end_of(&settings).unwrap()).to_string();
        assert!(ends.starts_with(end), "{ends}");
    }
    root.certify_until("edge", 9998).write(&settings.certificate, &settings.key, "");
    assert_eq!(loaded(&settings).unwrap().own.cert.len(), 1, "no chain is needed");
}

#[test]
fn each_fault_of_the_files_is_named() {
    let (_dir, settings) = files();
    let CertificateSettings { ca, certificate, key, .. } = settings.clone();
    assert!(fault(&settings).starts_with("link_ca ") && fault(&settings).contains("No such file"));
    fs::write(&ca, "").unwrap();
    assert!(fault(&settings).ends_with("ca.pem holds no certificate in PEM"));
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    fs::write(&ca, other.pem()).unwrap();
    assert!(fault(&settings).starts_with("link_cert "));
    let good = ours.certify("edge");
    good.write(&certificate, &key, "");
    assert!(fault(&settings).contains("is not signed by an authority of link_ca"));
    fs::write(&ca, format!("{}{}", other.pem(), ours.pem())).unwrap();
    loaded(&settings).unwrap();
    fs::write(&key, "").unwrap();
    assert!(fault(&settings).ends_with("node.key holds no private key in PEM"));
    fs::write(&key, ours.certify("edge").key.serialize_pem()).unwrap();
    assert!(fault(&settings).contains("is of another key than link_key"));
    let unknown = "-----BEGIN PRIVATE KEY-----\nMAMCAQA=\n-----END PRIVATE KEY-----\n";
    fs::write(&key, unknown).unwrap();
    assert!(fault(&settings).contains("has another type than Ed25519, ECDSA"));
    ours.certify_until("edge", 2001).write(&certificate, &key, "");
    assert!(fault(&settings).contains("has ended 2001-12-31T00:00:00Z: renew it"));
    ours.certify("cloud").write(&certificate, &key, "");
    assert!(fault(&settings).contains("no subject alternative name edge, the name of this node"));
    good.write(&certificate, &key, "");
    let early = load(&settings, &provider(), UnixTime::since_unix_epoch(Duration::from_secs(1)));
    assert!(early.unwrap_err().to_string().contains("begins 1975-01-01T00:00:00Z: is the clock"));
    let unnamed = CertificateSettings { node: "an edge".to_owned(), ..settings };
    assert!(fault(&unnamed).contains("node = \"an edge\" can be no name in a certificate"));
}
