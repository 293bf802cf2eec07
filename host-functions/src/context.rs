//! The context of an invocation, as a guest may read it. Runs in a worker.

use cwasi_abi::context_key as keys;
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_wire::ids::RunId;

/// One invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Name of the running function.
    pub function: String,
    /// Name of the workflow, empty when there is none.
    pub workflow: String,
    /// 32 lower-case hexadecimal digits; empty outside an invocation.
    pub invocation_id: String,
    /// End of the caller's wait; `None` = never.
    pub deadline: Option<Deadline>,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Name of the calling function, empty in a primary.
    pub caller: String,
    /// W3C trace context; empty if the call is not traced.
    pub traceparent: String,
    /// What goes with it for tracing systems; empty without.
    pub tracestate: String,
    /// Id of the workflow's run; `None` outside an invocation.
    pub run: Option<RunId>,
    /// Keys that begin with `http.` or `openwhisk.` and their values, if the call came by HTTP.
    pub metadata: Vec<(String, String)>,
}

impl Context {
    /// The value of a key of [`cwasi_abi::context_key`]; `None` for an unknown key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        Some(match key {
            keys::FUNCTION => self.function.clone(),
            keys::WORKFLOW => self.workflow.clone(),
            keys::INVOCATION_ID => self.invocation_id.clone(),
            keys::DEADLINE_MS => self.deadline_ms(),
            keys::ATTEMPT => self.attempt.to_string(),
            keys::CALLER => self.caller.clone(),
            keys::TRACEPARENT => self.traceparent.clone(),
            keys::TRACESTATE => self.tracestate.clone(),
            keys::RUN_ID => self.run.map_or_else(String::new, |run| run.to_string()),
            keys::HTTP_HEADERS => self.header_names(),
            keys::HTTP_METHOD | keys::HTTP_PATH | keys::HTTP_QUERY => self.metadata(key),
            _ if key.starts_with(keys::HTTP_HEADER) => self.metadata(key),
            _ if key.starts_with(keys::OPENWHISK) => self.metadata(key),
            _ => return None,
        })
    }

    fn metadata(&self, key: &str) -> String {
        let found = self.metadata.iter().find(|(known, _)| known == key);
        found.map_or_else(String::new, |(_, value)| value.clone())
    }

    fn header_names(&self) -> String {
        let names = self.metadata.iter().filter_map(|(key, _)| key.strip_prefix(keys::HTTP_HEADER));
        names.flat_map(|name| [name, "\n"]).collect()
    }

    fn deadline_ms(&self) -> String {
        self.deadline.map_or_else(String::new, |deadline| {
            deadline.left(monotonic_ns()).as_millis().to_string()
        })
    }
}
