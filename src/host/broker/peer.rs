//! The identity of a caller, as its shim knows it. Runs in the shim daemon, and in processes of the host that call.
//!
//! Invariant: a sandbox cannot change it.

use std::collections::BTreeMap;

use crate::metrics::snapshot::FunctionKey;
use crate::network;
use crate::spans::SpanSource;
use cwasi_coordinator::selection::Member;
use cwasi_wire::control::{FunctionLaunch, ModeHint};
use cwasi_wire::ids::Identity;

/// What kind of process calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerKind {
    Sandbox,
    /// A process of the host ([`crate::caller`]). Like a shim, it takes leased segments and keeps none.
    Host,
    /// A process of the host that calls for HTTP clients: only functions with `cwasi.http=gateway` serve it.
    Gateway,
    /// The HTTP port of one instance (`cwasi.http=PORT`): it calls that instance alone, and has its id.
    Port,
}

/// A caller: the function that a sandbox stands for, or a process of the host.
#[derive(Clone, Debug)]
pub struct BrokerPeer {
    pub kind: CallerKind,
    pub identity: Identity,
    /// Its pod or workflow on this host; empty without both.
    pub group: String,
    pub workflow: String,
    pub trust: String,
    pub instance: String,
    /// Mode of its calls.
    pub mode: ModeHint,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Functions of `cwasi.embed` that are not embedded, with the reason.
    pub not_embedded: BTreeMap<String, String>,
}

impl BrokerPeer {
    /// The function of a sandbox.
    #[must_use]
    pub fn of_sandbox(launch: &FunctionLaunch) -> Self {
        Self {
            kind: CallerKind::Sandbox,
            identity: launch.identity.clone(),
            group: launch.group.clone(),
            workflow: launch.workflow.clone(),
            trust: launch.trust.clone(),
            instance: launch.instance.clone(),
            mode: launch.mode,
            max_payload: launch.max_payload,
            not_embedded: launch.not_embedded.clone(),
        }
    }

    /// The function in the group's metrics.
    pub(crate) fn function_key(&self) -> FunctionKey {
        FunctionKey {
            namespace: self.identity.namespace.clone(),
            pod_namespace: self.identity.pod_namespace.clone(),
            workflow: self.workflow.clone(),
            function: self.identity.function.clone(),
        }
    }

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
            http: self.kind == CallerKind::Gateway,
            callee,
            passed_over: Vec::new(),
        }
    }

    /// True if this instance is there for the caller; `http`: it has `cwasi.http=gateway`.
    pub(crate) fn reaches(&self, instance: &str, http: bool) -> bool {
        match self.kind {
            CallerKind::Sandbox | CallerKind::Host => true,
            CallerKind::Gateway => http,
            CallerKind::Port => instance == self.instance,
        }
    }

    /// Whose spans its reports are.
    pub(crate) fn span_source(&self) -> SpanSource<'_> {
        let Self { identity, workflow, instance, .. } = self;
        SpanSource { identity, workflow, instance }
    }

    pub(super) fn member(&self) -> Member<'_> {
        Member { identity: &self.identity, workflow: &self.workflow, trust: &self.trust }
    }
}
