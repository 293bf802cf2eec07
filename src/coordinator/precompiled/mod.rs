//! Native code that was compiled elsewhere and signed: who may sign, what a signature says, and when a node believes it.
//! Runs in the shim daemon; `cwasi compile` signs.
//!
//! - `keys`: Ed25519 keys in PEM, as `openssl` makes them;
//! - `envelope`: the signature's file, a DSSE envelope (Dead Simple Signing Envelope 1.0) around a statement;
//! - `statement`: what is signed: the module, the engine, the processor, and the digest of the code.
//!
//! Invariant: a [`Verified`] statement has the signature of a key that this node trusts, and fits module, engine and
//! node. The AOT cache takes only code with the digest that such a statement names.

mod envelope;
mod error;
mod keys;
mod statement;
#[cfg(test)]
pub mod tests;

use cwasi_config::Engine;

pub use envelope::SIGNATURE_MAX;
pub use error::{KeyError, PrecompiledError};
pub use keys::{SigningKey, TrustedKeys};
pub use statement::Statement;

use super::fingerprint::Fingerprint;

/// Extension that a signature's file has in addition to its code's.
pub const SIGNATURE_EXTENSION: &str = "sig";
/// Most signatures that are tried for one module.
pub const OFFERS_MAX: usize = 16;

/// A signature that came with a module, and where its code is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// File name of the code, for messages.
    pub name: String,
    /// The envelope.
    pub signature: Vec<u8>,
    /// Where the code is: a path or a digest, as the place says.
    pub place: String,
}

/// A statement that this node believes.
#[derive(Clone, Debug)]
pub struct Verified {
    statement: Statement,
    key: String,
}

impl Verified {
    /// Length of the code in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.statement.length
    }

    /// sha256 of the code, hexadecimal.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.statement.code
    }

    /// Id of the key that signed it.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Signs a statement; the bytes of the signature's file.
#[must_use]
pub fn sign(key: &SigningKey, statement: &Statement) -> Vec<u8> {
    envelope::seal(key, &statement.to_json())
}

/// Checks a signature, and that it is about `module` (its sha256), compiled for `engine` on a node like this.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn verify(
    signature: &[u8],
    keys: &TrustedKeys,
    (module, engine): (&str, Engine),
    node: &Fingerprint,
) -> Result<Verified, PrecompiledError> {
    if keys.is_empty() {
        return Err(PrecompiledError::NoKey { unusable: keys.unusable() });
    }
    let envelope::Opened { payload, key } = envelope::open(signature, keys)?;
    let statement = Statement::of_json(&payload)?;
    statement.check(module, engine, node)?;
    Ok(Verified { statement, key })
}
