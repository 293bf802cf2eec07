//! On whose behalf a sandbox speaks: what its shim knows, and the sandbox cannot change.

use std::collections::BTreeMap;

use crate::dispatcher::selection::Member;
use crate::shim::network;
use crate::wire::control::ModeHint;
use crate::wire::ids::Identity;

/// On whose behalf a sandbox speaks.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Its function.
    pub identity: Identity,
    /// Its pod or workflow on this host; empty when it has neither.
    pub group: String,
    /// Its workflow.
    pub workflow: String,
    /// Its trust group.
    pub trust: String,
    /// Its instance.
    pub instance: String,
    /// Which modes its calls may take.
    pub mode: ModeHint,
    /// Largest payload that it sends or takes, in bytes.
    pub max_payload: u64,
    /// Functions that were to be embedded in it and are not, with the reason.
    pub not_embedded: BTreeMap<String, String>,
}

impl Speaker {
    /// It as the caller of `callee` over the network.
    #[must_use]
    pub fn calling(&self, callee: Identity) -> network::Caller {
        network::Caller {
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
