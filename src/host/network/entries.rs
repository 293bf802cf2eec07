//! What a stream's entry asks for: who calls, with which payload. Runs in the shim daemon.
//!
//! Invariant: an entry of others is any bytes. What it asks for is decided by the function's own trigger.

use cwasi_config::triggers::Trigger;
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::{may_call, refusal};
use cwasi_modes::causes::Invalid;
use cwasi_modes::{CallError, Payload};
use cwasi_networked::claims::shaped;
use cwasi_networked::streams::StreamEntry;
use cwasi_wire::envelope::Request;
use cwasi_wire::ids::{Identity, short_hash};
use cwasi_wire::network::{self, Event, decode};

/// Field of an entry of others that is the payload. Without it, the payload is a JSON object of all fields.
const PAYLOAD: &str = "payload";

/// One run of a handler.
pub(super) struct Invocation {
    pub(super) caller: network::Caller,
    /// The caller's pod or workflow; empty when it has neither.
    pub(super) group: String,
    pub(super) request: Request,
    pub(super) payload: Payload,
}

impl Invocation {
    /// Reads a one-way message for an instance.
    ///
    /// # Errors
    /// When it is none, or its sender may not call the function.
    pub(super) fn of_message(entry: &StreamEntry, record: &Record) -> Result<Self, CallError> {
        let invalid =
            |error: &dyn std::error::Error| Invalid::Malformed { error: error.to_string() };
        let mut event: Event = decode(entry.envelope()).map_err(|error| invalid(&error))?;
        let metadata = event.take_metadata();
        let caller = event.caller.unwrap_or_default();
        let sender = caller.identity();
        if !is_trigger(&sender, record) && !may_call(&sender, &record.identity, &record.allow) {
            return Err(refusal(&sender, &record.identity, &record.allow).into());
        }
        let payload = shaped(entry.payload().to_vec()).map_err(|error| invalid(&error))?;
        let request = Request {
            call_id: event.event_id,
            target: event.target,
            traceparent: event.traceparent,
            tracestate: event.tracestate,
            metadata,
            ..Request::default()
        };
        Ok(Self { caller, group: event.group, request, payload })
    }

    /// Reads an entry of a trigger's stream for an instance.
    ///
    /// # Errors
    /// When its payload cannot be moved.
    pub(super) fn of_entry(
        entry: &StreamEntry,
        trigger: &Trigger,
        record: &Record,
        node: &str,
    ) -> Result<Self, CallError> {
        let payload = shaped(payload_of(entry))
            .map_err(|error| Invalid::Malformed { error: error.to_string() })?;
        let request = Request {
            call_id: entry_id(entry, trigger, &record.identity),
            target: record.identity.function.clone(),
            ..Request::default()
        };
        let caller = network::Caller::of(&caller_of(trigger, &record.identity), "", "", node);
        Ok(Self { caller, group: String::new(), request, payload })
    }
}

/// A trigger as the caller of its function. No function has such a name, and no shim lets a caller have it.
pub(super) fn caller_of(trigger: &Trigger, function: &Identity) -> Identity {
    function.sibling(&trigger.to_string())
}

/// True if this caller is one of the function's own triggers: the function itself allows it.
fn is_trigger(caller: &Identity, record: &Record) -> bool {
    let is = |trigger: &Trigger| trigger.to_string() == caller.function;
    caller.same_scope(&record.identity) && record.triggers.iter().any(is)
}

/// The invocation's id, the same for each attempt: 16 bytes.
fn entry_id(entry: &StreamEntry, trigger: &Trigger, function: &Identity) -> Vec<u8> {
    let (name, function) = (trigger.name(), function.short());
    let half = |half: &str| short_hash(&[half, &function, name, &entry.id]);
    hex::decode(half("a") + &half("b")).expect("a hash is written in hexadecimal digits")
}

/// The user's bytes of an entry.
fn payload_of(entry: &StreamEntry) -> Vec<u8> {
    if let Some(payload) = entry.field(PAYLOAD) {
        return payload.to_vec();
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields = entry.fields.iter().map(|(name, value)| (text(name), text(value).into()));
    let object: serde_json::Map<String, serde_json::Value> = fields.collect();
    serde_json::Value::from(object).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field's name and value.
    type Field<'a> = (&'a [u8], &'a [u8]);

    fn entry(fields: &[Field<'_>]) -> StreamEntry {
        let fields = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        StreamEntry { id: "1-0".into(), fields }
    }

    #[test]
    fn a_payload_is_a_field_or_all_fields() {
        let table: [(&[Field<'_>], &[u8]); 6] = [
            (&[(b"payload", b"\xff\x00")], b"\xff\x00"),
            (&[(b"other", b"1"), (b"payload", b"x")], b"x"),
            (&[(b"payload", b"x"), (b"payload", b"y")], b"y"),
            (&[(b"order", b"7")], br#"{"order":"7"}"#),
            (
                &[(b"order", b"7"), (b"city", b"K\xc3\xb6ln")],
                r#"{"city":"Köln","order":"7"}"#.as_bytes(),
            ),
            (&[(b"raw", b"\xff\"")], "{\"raw\":\"\u{fffd}\\\"\"}".as_bytes()),
        ];
        for (fields, payload) in table {
            assert_eq!(payload_of(&entry(fields)), payload, "{fields:?}");
        }
    }

    #[test]
    fn an_id_is_an_entrys_in_its_stream_for_its_function() {
        let (one, other) = (entry(&[]), StreamEntry { id: "2-0".into(), ..entry(&[]) });
        let function = |function: &str| Identity {
            namespace: "n".into(),
            pod_namespace: String::new(),
            function: function.into(),
        };
        let stream = |name: &str| Trigger::RedisStream(name.into());
        let ids = [
            entry_id(&one, &stream("a"), &function("f")),
            entry_id(&other, &stream("a"), &function("f")),
            entry_id(&one, &stream("b"), &function("f")),
            entry_id(&one, &stream("a"), &function("g")),
        ];
        assert_eq!(entry_id(&one, &stream("a"), &function("f")), ids[0]);
        assert!(ids.iter().all(|id| id.len() == 16));
        for (index, id) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(id));
        }
    }
}
