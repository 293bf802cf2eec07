//! What a signature says about native code. Pure.

use cwasi_config::Engine;
use serde::{Deserialize, Serialize};

use super::error::PrecompiledError;
use crate::fingerprint::Fingerprint;

/// Most bytes of signed code, which are in memory while they are compared.
const CODE_MAX: u64 = 512 << 20;

/// What was compiled, how, for which processors, and the digest of the result.
///
/// No member may be unknown: it could be a condition that this node would not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// sha256 of the module as it was compiled, hexadecimal.
    pub module: String,
    pub engine: Engine,
    /// Version of the engine.
    pub version: String,
    /// How the compiler was called, as in [`Fingerprint`].
    pub options: String,
    /// Of the processors, as Rust names it.
    pub architecture: String,
    /// Features that a processor needs, as `/proc/cpuinfo` names them.
    pub features: Vec<String>,
    /// sha256 of the code, hexadecimal.
    pub code: String,
    /// Length of the code in bytes.
    pub length: u64,
}

impl Statement {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a statement has no keys but strings")
    }

    pub(super) fn of_json(bytes: &[u8]) -> Result<Self, PrecompiledError> {
        let unreadable =
            |error: serde_json::Error| PrecompiledError::Statement { problem: error.to_string() };
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// Checks that the code is of this module, and runs on `node`.
    pub(super) fn check(
        &self,
        module: &str,
        wanted: Engine,
        node: &Fingerprint,
    ) -> Result<(), PrecompiledError> {
        let Self { engine, version, options, architecture, features, .. } = self.clone();
        let own = |text: &str| text.to_owned();
        if self.module != module {
            return Err(PrecompiledError::Module { module: self.module.clone() });
        }
        if engine != wanted {
            return Err(PrecompiledError::Engine { engine, wanted });
        }
        if version != node.version {
            return Err(PrecompiledError::Version { engine, version, own: own(&node.version) });
        }
        if options != node.options {
            return Err(PrecompiledError::Options { options, own: own(&node.options) });
        }
        if architecture != node.architecture {
            let own = own(&node.architecture);
            return Err(PrecompiledError::Architecture { architecture, own });
        }
        if self.length > CODE_MAX {
            return Err(PrecompiledError::TooLarge { length: self.length, most: CODE_MAX });
        }
        let has = |feature: &&String| node.features.split(' ').any(|own| own == **feature);
        let missing: Vec<_> = features.iter().filter(|it| !has(it)).cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(PrecompiledError::Features { missing: missing.join(", ") })
    }
}
