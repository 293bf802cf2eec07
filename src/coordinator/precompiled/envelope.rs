//! The file of a signature: a DSSE envelope in JSON, with a statement as its payload. Pure.
//!
//! The signature covers the payload's type and its bytes as they are, so no two readers can understand them differently.
//! An envelope has no other member: whatever bit of it changes, it is refused.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::error::PrecompiledError;
use super::keys::{SigningKey, TrustedKeys};

/// Media type of a statement. Its version goes up with every change of its members.
const PAYLOAD_TYPE: &str = "application/vnd.cwasi.native.statement.v1+json";
/// Largest envelope in bytes.
pub const SIGNATURE_MAX: u64 = 64 << 10;
/// Most signatures in an envelope.
const SIGNATURES_MAX: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    sig: String,
}

/// What a trusted key has signed.
pub(super) struct Opened {
    pub(super) payload: Vec<u8>,
    /// Id of the key.
    pub(super) key: String,
}

/// Signs `payload`.
pub(super) fn seal(key: &SigningKey, payload: &[u8]) -> Vec<u8> {
    let sig = BASE64_STANDARD.encode(key.sign(&signed(payload)));
    let envelope = Envelope {
        payload_type: PAYLOAD_TYPE.to_owned(),
        payload: BASE64_STANDARD.encode(payload),
        signatures: vec![Signature { sig }],
    };
    serde_json::to_vec(&envelope).expect("an envelope has no keys but strings")
}

/// Opens an envelope that one of `keys` has signed.
pub(super) fn open(bytes: &[u8], keys: &TrustedKeys) -> Result<Opened, PrecompiledError> {
    let unreadable = |problem: String| PrecompiledError::Envelope { problem };
    if bytes.len() as u64 > SIGNATURE_MAX {
        return Err(unreadable(format!("it has more than {SIGNATURE_MAX} bytes")));
    }
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(unreadable(format!("it is about `{}`", envelope.payload_type.escape_debug())));
    }
    if envelope.signatures.len() > SIGNATURES_MAX {
        return Err(unreadable(format!("it has more than {SIGNATURES_MAX} signatures")));
    }
    let decode =
        |text: &str| BASE64_STANDARD.decode(text).map_err(|error| unreadable(error.to_string()));
    let payload = decode(&envelope.payload)?;
    let message = signed(&payload);
    for Signature { sig } in &envelope.signatures {
        if let Some(key) = keys.signer(&message, &decode(sig)?) {
            return Ok(Opened { payload, key: key.to_owned() });
        }
    }
    Err(PrecompiledError::Signer { unusable: keys.unusable() })
}

/// The bytes that are signed (DSSE's pre-authentication encoding).
fn signed(payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len());
    [head.as_bytes(), payload].concat()
}
