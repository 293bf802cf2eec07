//! Ids: calls, functions (identities) and their running instances.

use std::fmt;
use std::str::FromStr;

use hex::FromHexError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Who a function is: the key of the registry, of policy and of everything per function.
///
/// Under CRI every pod is in containerd's namespace `k8s.io`, so the pod's own namespace is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub namespace: String,
    /// Kubernetes namespace of the pod; empty outside Kubernetes.
    pub pod_namespace: String,
    pub function: String,
}

impl Identity {
    /// The same function name seen from another function's scope.
    #[must_use]
    pub fn sibling(&self, function: &str) -> Self {
        Self { function: function.to_owned(), ..self.clone() }
    }

    /// True when both live in the same containerd namespace and pod namespace.
    #[must_use]
    pub fn same_scope(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.pod_namespace == other.pod_namespace
    }

    /// 16 hexadecimal digits that stand for this identity in file names (`sun_path` holds 108 bytes).
    #[must_use]
    pub fn short(&self) -> String {
        short_hash(&[&self.namespace, &self.pod_namespace, &self.function])
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pod_namespace.is_empty() {
            write!(f, "{}/{}", self.namespace, self.function)
        } else {
            write!(f, "{}/{}/{}", self.namespace, self.pod_namespace, self.function)
        }
    }
}

/// Gives messages with the fields of an [`Identity`] a method that returns it.
macro_rules! has_identity {
    ($($message:ty),+) => {$(
        impl $message {
            /// The function that the message names.
            #[must_use]
            pub fn identity(&self) -> Identity {
                Identity {
                    namespace: self.namespace.clone(),
                    pod_namespace: self.pod_namespace.clone(),
                    function: self.function.clone(),
                }
            }
        }
    )+};
}

pub(crate) use has_identity;

/// 16 hexadecimal digits over `parts`; parts are length-prefixed, so no two lists collide by joining.
#[must_use]
pub fn short_hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hex::encode(&hasher.finalize()[..8])
}

/// Id of one call, unique without coordination; 16 bytes, also the W3C trace id's size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub [u8; 16]);

impl CallId {
    /// From exactly 16 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl FromStr for CallId {
    type Err = FromHexError;

    /// As [`fmt::Display`] writes it.
    fn from_str(text: &str) -> Result<Self, FromHexError> {
        let mut id = Self([0; 16]);
        hex::decode_to_slice(text, &mut id.0)?;
        Ok(id)
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

/// One run of a workflow: a primary's invocation and every call that is made while serving it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub [u8; 16]);

impl RunId {
    /// From exactly 16 bytes.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_parts_does_not_collide() {
        assert_ne!(short_hash(&["ab", "c"]), short_hash(&["a", "bc"]));
        assert_eq!(short_hash(&["ab", "c"]).len(), 16);
    }
}
