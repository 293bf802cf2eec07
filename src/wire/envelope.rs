//! Envelopes (`proto/envelope.proto`): ids, deadline and caller identity beside a payload.

use protobuf::EnumOrUnknown;

pub use super::generated::envelope::{
    Assignment, Detail, Group, Hello, Join, Metadata, Path, Request, Response, SharedConnection,
    Undelivered,
};
use super::ids::{CallId, Identity, RunId, has_identity};

has_identity!(Hello);

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

    /// The hello of a caller of the callee's trust group.
    #[must_use]
    pub fn lending(self, lends: bool) -> Self {
        Self { lends, ..self }
    }
}

impl Request {
    /// The call's id; `None` when the peer sent something else than 16 bytes.
    #[must_use]
    pub fn id(&self) -> Option<CallId> {
        CallId::from_slice(&self.call_id)
    }

    /// The run of the call; its own id if the caller gave none. `None` without an id.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        RunId::from_slice(&self.run).or_else(|| self.id().map(|id| RunId(id.0)))
    }
}

/// How a call ended, beside its response or its error's text.
#[derive(Clone, Debug, PartialEq)]
pub struct CallStatus {
    /// Errno of the guest ABI, 0 = answered.
    pub errno: i32,
    /// What the errno leaves open.
    pub detail: Detail,
    /// What the callee set with `context_set` and `context_add`.
    pub metadata: Vec<Metadata>,
}

impl CallStatus {
    pub const ANSWERED: Self = Self::of(0, Detail::DETAIL_NONE);

    /// Without metadata.
    #[must_use]
    pub const fn of(errno: i32, detail: Detail) -> Self {
        Self { errno, detail, metadata: Vec::new() }
    }

    /// With a response, and what the callee set.
    #[must_use]
    pub const fn answered_with(metadata: Vec<Metadata>) -> Self {
        Self { errno: 0, detail: Detail::DETAIL_NONE, metadata }
    }

    /// From the fields of a message.
    #[must_use]
    pub fn read(errno: i32, detail: EnumOrUnknown<Detail>, metadata: &[Metadata]) -> Self {
        let detail = detail.enum_value().unwrap_or(Detail::DETAIL_NONE);
        Self { errno, detail, metadata: metadata.to_vec() }
    }
}

impl Path {
    /// Every one of a call that left its host.
    pub const ALL: [Self; 2] = [Self::PATH_DIRECT, Self::PATH_REDIS];

    /// As metrics, traces and tables spell it; empty for a call that has not left its host.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::PATH_NONE => "",
            Self::PATH_DIRECT => "direct",
            Self::PATH_REDIS => "redis",
        }
    }

    /// The text of the path with this one; empty if there is none.
    #[must_use]
    pub fn known(text: &str) -> &'static str {
        Self::ALL.map(Self::text).into_iter().find(|known| *known == text).unwrap_or_default()
    }
}

impl Response {
    /// The end of one call.
    #[must_use]
    pub fn of(id: CallId, outcome: CallStatus) -> Self {
        let CallStatus { errno, detail, metadata } = outcome;
        Self { call_id: id.0.to_vec(), errno, detail: detail.into(), metadata, ..Self::default() }
    }

    /// How the call ended.
    #[must_use]
    pub fn outcome(&self) -> CallStatus {
        CallStatus::read(self.errno, self.detail, &self.metadata)
    }

    /// How the call went to another host, if its caller's shim says so.
    #[must_use]
    pub fn taken_path(&self) -> Path {
        self.path.enum_value_or_default()
    }

    /// The call's id; `None` when the peer sent something else than 16 bytes.
    #[must_use]
    pub fn id(&self) -> Option<CallId> {
        CallId::from_slice(&self.call_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_run_is_one_of_its_own() {
        let mut request = Request { call_id: vec![1; 16], ..Request::default() };
        assert_eq!(request.run_id(), Some(RunId([1; 16])));
        request.run = vec![2; 16];
        assert_eq!(request.run_id(), Some(RunId([2; 16])));
        request.run = vec![2; 15];
        assert_eq!(request.run_id(), Some(RunId([1; 16])));
        request.call_id.clear();
        assert_eq!(request.run_id(), None);
    }
}
