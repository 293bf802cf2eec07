//! Envelopes (`proto/envelope.proto`): ids, deadline and caller identity beside a payload.

pub use super::generated::envelope::{Assignment, Hello, Request, Response};
use super::ids::{CallId, Identity};

impl Hello {
    /// The hello of one caller instance.
    #[must_use]
    pub fn of(identity: &Identity, workflow: &str, instance: &str) -> Self {
        Self {
            namespace: identity.namespace.clone(),
            pod_namespace: identity.pod_namespace.clone(),
            function: identity.function.clone(),
            workflow: workflow.to_owned(),
            instance: instance.to_owned(),
            ..Self::default()
        }
    }

    /// Who calls.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            namespace: self.namespace.clone(),
            pod_namespace: self.pod_namespace.clone(),
            function: self.function.clone(),
        }
    }
}

impl Request {
    /// The call's id; `None` when the peer sent something else than 16 bytes.
    #[must_use]
    pub fn id(&self) -> Option<CallId> {
        CallId::from_slice(&self.call_id)
    }
}

impl Response {
    /// The call's id; `None` when the peer sent something else than 16 bytes.
    #[must_use]
    pub fn id(&self) -> Option<CallId> {
        CallId::from_slice(&self.call_id)
    }
}
