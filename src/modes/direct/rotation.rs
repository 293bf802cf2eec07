//! The certificate that a node has now: its files are read again when they change, so that it is renewed without a
//! restart. Files that are no certificate of the node change nothing, and one line of the log says so.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;

use super::certificates::{CertificateError, CertificateSettings, NodeCertificate, load};

/// How long what was found counts.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// What changes when a file does: device, inode, seconds and nanoseconds of its last change, length.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec(), found.size()))
}

#[derive(Debug)]
struct Current {
    /// Of the files that were read last, before they were.
    stamps: [Stamp; 3],
    checked: Instant,
    certificate: Option<Arc<NodeCertificate>>,
    /// Why the files that were read last are not the certificate.
    fault: Option<String>,
    /// How many certificates there were.
    number: u64,
}

/// A node's certificate, which may change.
#[derive(Debug)]
pub(crate) struct CurrentCertificate {
    settings: CertificateSettings,
    provider: Arc<CryptoProvider>,
    current: Mutex<Current>,
}

impl CurrentCertificate {
    pub fn new(settings: CertificateSettings, provider: Arc<CryptoProvider>) -> Self {
        let (stamps, checked) = ([None; 3], Instant::now());
        let current = Current { stamps, checked, certificate: None, fault: None, number: 0 };
        let this = Self { settings, provider, current: Mutex::new(current) };
        {
            let mut current = this.current.lock().unwrap_or_else(PoisonError::into_inner);
            this.read(&mut current, this.stamps());
        }
        this
    }

    /// The name that it proves.
    pub fn node(&self) -> &str {
        &self.settings.node
    }

    /// The certificate, and its number.
    ///
    /// # Errors
    /// Why there is none now.
    pub fn get(&self) -> Result<(Arc<NodeCertificate>, u64), String> {
        self.get_at(Instant::now(), SystemTime::now())
    }

    fn get_at(
        &self,
        now: Instant,
        date: SystemTime,
    ) -> Result<(Arc<NodeCertificate>, u64), String> {
        // It is replaced as a whole: a panic elsewhere leaves it consistent.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= current.checked + CHECK_EVERY {
            current.checked = now;
            let stamps = self.stamps();
            // What was wrong may have been the clock.
            if stamps != current.stamps || current.fault.is_some() {
                self.read(&mut current, stamps);
            }
        }
        let Some(certificate) = &current.certificate else {
            return Err(current.fault.clone().unwrap_or_default());
        };
        if certificate.ends <= date {
            let ended = certificate.ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let path = self.settings.certificate.clone();
            let ended = UnixTime::since_unix_epoch(ended);
            return Err(CertificateError::Ended { path, ended }.to_string());
        }
        Ok((Arc::clone(certificate), current.number))
    }

    fn stamps(&self) -> [Stamp; 3] {
        let CertificateSettings { ca, certificate, key, .. } = &self.settings;
        [ca, certificate, key].map(|path| stamp(path))
    }

    fn read(&self, current: &mut Current, stamps: [Stamp; 3]) {
        current.stamps = stamps;
        match load(&self.settings, &self.provider, UnixTime::now()) {
            Ok(certificate) => {
                current.number += 1;
                let until = humantime::format_rfc3339_seconds(certificate.ends);
                tracing::info!(%until, "direct connections prove link_cert");
                current.certificate = Some(Arc::new(certificate));
                current.fault = None;
            }
            Err(error) => {
                let fault = error.to_string();
                if current.fault.as_ref() == Some(&fault) {
                    return;
                }
                if current.certificate.is_some() {
                    tracing::error!(%error, "the certificate from before stays");
                } else {
                    tracing::error!(%error, "no direct connections");
                }
                current.fault = Some(fault);
            }
        }
    }
}

#[cfg(test)]
mod tests;
