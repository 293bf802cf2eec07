//! The context of an invocation, as a guest may read it. Runs in a worker.

use std::collections::HashSet;

use cwasi_abi::context_key as keys;
use cwasi_abi::response_head::{is_field_name, is_field_value};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_wire::envelope::Metadata;
use cwasi_wire::ids::RunId;
use cwasi_wire::metadata::joined;

/// One invocation.
#[derive(Clone, Debug, Default, PartialEq)]
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
    pub metadata: Vec<Metadata>,
    /// Most bytes of metadata that the function may set; `None` = [`cwasi_abi::METADATA_MAX`].
    pub max_head: Option<usize>,
}

impl Context {
    /// The value of a key of [`cwasi_abi::context_key`]; `None` for an unknown key. A header's bytes need not be UTF-8.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        let text = match key {
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
            keys::HTTP_FIELDS => return Some(self.fields()),
            keys::HTTP_METHOD | keys::HTTP_PATH | keys::HTTP_QUERY => {
                return Some(self.metadata(key));
            }
            _ if key.starts_with(keys::HTTP_HEADER) => return Some(self.metadata(key)),
            _ if key.starts_with(keys::OPENWHISK) => return Some(self.metadata(key)),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    /// The headers of the HTTP request: lower-case name and value, in their order. What is no header comes from a
    /// compromised caller and is left out.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let headers = self.metadata.iter().filter_map(|pair| {
            Some((pair.key.strip_prefix(keys::HTTP_HEADER)?, pair.value.as_slice()))
        });
        headers.filter(|(name, value)| is_field_name(name) && is_field_value(value))
    }

    /// True if the HTTP request has the method `HEAD`.
    pub(crate) fn is_head(&self) -> bool {
        self.metadata.iter().any(|pair| pair.key == keys::HTTP_METHOD && pair.value == b"HEAD")
    }

    fn metadata(&self, key: &str) -> Vec<u8> {
        let found = self.metadata.iter().filter(|pair| pair.key == key);
        joined(key, found.map(|pair| pair.value.as_slice()))
    }

    /// Each name once.
    fn header_names(&self) -> String {
        let mut seen = HashSet::new();
        let names = self.headers().map(|(name, _)| name).filter(|name| seen.insert(*name));
        names.flat_map(|name| [name, "\n"]).collect()
    }

    fn fields(&self) -> Vec<u8> {
        let line = |(name, value)| [str::as_bytes(name), b": ", value, b"\n"].concat();
        self.headers().flat_map(line).collect()
    }

    fn deadline_ms(&self) -> String {
        self.deadline.map_or_else(String::new, |deadline| {
            deadline.left(monotonic_ns()).as_millis().to_string()
        })
    }
}
