//! Signatures under native code, and the artifacts that bring them (`coordinator::precompiled`, `content::referrers`).
#![no_main]

use std::sync::OnceLock;

use cwasi_config::Engine;
use cwasi_content::referrers::signed_code;
use cwasi_coordinator::fingerprint::fingerprint;
use cwasi_coordinator::precompiled::{OFFERS_MAX, TrustedKeys, verify};
use cwasi_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

/// Any public key: nobody here has the private one.
const KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
                   MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
                   -----END PUBLIC KEY-----\n";
/// Digest to which the seed's artifact refers.
const IMAGE: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn keys() -> &'static TrustedKeys {
    static KEYS: OnceLock<TrustedKeys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let keys = TrustedKeys::read(&[KEY.to_owned()]);
        assert!(!keys.is_empty(), "{}", keys.unusable());
        keys
    })
}

fuzz_target!(|data: &[u8]| {
    let (keys, node) = (keys(), fingerprint(Engine::Wasmtime));
    let believed = bounded(data, 64, || verify(data, keys, ("aa", Engine::Wasmtime), &node));
    assert!(believed.is_err(), "a signature without its key");
    if let Ok(found) = bounded(data, 256, || signed_code(data, IMAGE, "cwasm")) {
        assert!(found.len() <= OFFERS_MAX);
        for pair in found {
            assert!(pair.name.ends_with(".cwasm"));
            assert!(!pair.code.is_empty() && !pair.signature.is_empty());
        }
    }
});
