//! An authority that certifies the servers and the nodes of a test.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer,
    KeyPair, SigningKey, date_time_ymd,
};

/// An authority, or one between an authority and its certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new authority of this name.
    ///
    /// # Panics
    /// When no keys can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params(name), key).expect("a certificate"))
    }

    /// An authority whose certificate this one has signed; it ends with this year.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn below(&self, name: &str, last_year: i32) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(name);
        params.not_after = date_time_ymd(last_year, 12, 31);
        Self(CertifiedIssuer::signed_by(params, key, self.issuer()).expect("a certificate"))
    }

    fn issuer(&self) -> &Issuer<'static, impl SigningKey + use<>> {
        &self.0
    }

    /// Its certificate, for those who trust it.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key of a server with this name.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn certify(&self, name: &str) -> Certified {
        self.certify_until(name, 4000)
    }

    /// The same; it ends with this year.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn certify_until(&self, name: &str, last_year: i32) -> Certified {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Certified { certificate, key }
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Authorities of one name would be taken for each other.
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Certified {
    pub certificate: Certificate,
    pub key: KeyPair,
}

impl Certified {
    /// Writes both as PEM, each in the place of a file that is there; `between` are further certificates of the chain.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn write(&self, certificate: &Path, key: &Path, between: &str) {
        let chain = format!("{}{between}", self.certificate.pem());
        for (path, text) in [(certificate, chain), (key, self.key.serialize_pem())] {
            let draft = path.with_extension("new");
            std::fs::write(&draft, text).expect("a file");
            std::fs::rename(&draft, path).expect("its name");
        }
    }
}
