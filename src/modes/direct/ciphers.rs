//! The cryptography of direct connections.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};

/// Ciphers, signatures and random bytes of all connections.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    // The faster of the two AES ones: payloads are large, and both are sound.
    provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}
