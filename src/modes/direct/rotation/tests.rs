//! Files that change, and what a node proves then.

use std::path::PathBuf;

use cwasi_testbed::authority::Authority;

use super::super::ciphers::provider;
use super::*;

struct Files {
    _dir: tempfile::TempDir,
    ours: Authority,
    settings: CertificateSettings,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| -> PathBuf { dir.path().join(name) };
        let (ca, certificate, key) = (path("ca.pem"), path("node.pem"), path("node.key"));
        let settings = CertificateSettings { ca, certificate, key, node: "edge".to_owned() };
        Self { _dir: dir, ours: Authority::new("ours"), settings }
    }

    fn renew(&self) {
        let CertificateSettings { ca, certificate, key, .. } = &self.settings;
        fs::write(ca, self.ours.pem()).unwrap();
        self.ours.certify("edge").write(certificate, key, "");
    }

    fn current(&self) -> CurrentCertificate {
        CurrentCertificate::new(self.settings.clone(), provider())
    }
}

/// Number and bytes of the certificate, after a while.
fn now(current: &CurrentCertificate) -> Result<(u64, Vec<u8>), String> {
    after(CHECK_EVERY, current)
}

fn after(pause: Duration, current: &CurrentCertificate) -> Result<(u64, Vec<u8>), String> {
    let checked = current.current.lock().unwrap().checked;
    let found = current.get_at(checked + pause, SystemTime::now());
    found.map(|(certificate, number)| (number, certificate.own.cert[0].to_vec()))
}

#[test]
fn a_renewed_certificate_counts_and_a_wrong_one_does_not() {
    let files = Files::new();
    files.renew();
    let current = files.current();
    let first = now(&current).unwrap();
    assert_eq!((first.0, &now(&current).unwrap()), (1, &first), "nothing has changed");
    files.renew();
    assert_eq!(after(CHECK_EVERY / 2, &current).unwrap(), first, "its files were just looked at");
    let second = now(&current).unwrap();
    assert!(second.0 == 2 && second.1 != first.1);
    // A key whose certificate is not there yet, a file that is cut off, none.
    let key = &files.settings.key;
    fs::write(key, files.ours.certify("edge").key.serialize_pem()).unwrap();
    assert_eq!(now(&current).unwrap(), second);
    fs::write(key, "-----BEGIN").unwrap();
    assert_eq!(now(&current).unwrap(), second);
    fs::remove_file(key).unwrap();
    assert_eq!(now(&current).unwrap(), second);
    let fault = current.current.lock().unwrap().fault.clone().unwrap();
    assert!(fault.contains("node.key cannot be read: No such file"), "{fault}");
    files.renew();
    assert_eq!(now(&current).unwrap().0, 3);
    assert_eq!(current.current.lock().unwrap().fault, None);
}

#[test]
fn a_certificate_may_come_late() {
    let files = Files::new();
    let current = files.current();
    assert!(now(&current).unwrap_err().contains("link_ca"));
    files.renew();
    assert_eq!(now(&current).unwrap().0, 1);
}

#[test]
fn a_certificate_that_has_ended_proves_nothing() {
    let files = Files::new();
    files.renew();
    let current = files.current();
    let now = Instant::now();
    let ends = current.get_at(now, SystemTime::now()).unwrap().0.ends;
    assert!(current.get_at(now, ends - Duration::from_secs(1)).is_ok());
    let error = current.get_at(now, ends).unwrap_err();
    assert!(error.contains("node.pem has ended") && error.contains("renew it"), "{error}");
}
