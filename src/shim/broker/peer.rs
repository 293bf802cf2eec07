//! The identity of a sandbox, as its shim knows it. Runs in the shim daemon.
//!
//! Invariant: the sandbox cannot change it.

use std::collections::BTreeMap;

use crate::dispatcher::selection::Member;
use crate::shim::network;
use crate::wire::control::ModeHint;
use crate::wire::ids::Identity;

/// The caller that a sandbox stands for.
#[derive(Clone, Debug)]
pub struct BrokerPeer {
    /// Its function.
    pub identity: Identity,
    /// Its pod or workflow on this host; empty without both.
    pub group: String,
    /// Its workflow.
    pub workflow: String,
    /// Its trust group.
    pub trust: String,
    /// Its instance.
    pub instance: String,
    /// Mode of its calls.
    pub mode: ModeHint,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Functions of `cwasi.embed` that are not embedded, with the reason.
    pub not_embedded: BTreeMap<String, String>,
}

impl BrokerPeer {
    /// The same as a caller over the network.
    #[must_use]
    pub fn calling(&self, callee: Identity) -> network::BridgeCaller {
        network::BridgeCaller {
            identity: self.identity.clone(),
            group: self.group.clone(),
            workflow: self.workflow.clone(),
            instance: self.instance.clone(),
            hint: self.mode,
            max_payload: self.max_payload,
            callee,
            passed_over: Vec::new(),
        }
    }

    pub(super) fn member(&self) -> Member<'_> {
        Member { identity: &self.identity, workflow: &self.workflow, trust: &self.trust }
    }
}
