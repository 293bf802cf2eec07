//! Messages between shim, zygote, builder and sandboxes (`wire::control`), and trace contexts (`wire::trace`,
//! `wire::trace_headers`).
#![no_main]

use std::fmt::Debug;

use cwasi_fuzz::memory::bounded;
use cwasi_wire::control::{
    EmitReply, ResolveReply, SandboxMessage, VerbReply, VerbRequest, decode, encode,
};
use cwasi_wire::trace::TraceContext;
use cwasi_wire::trace_headers::{TRACESTATE_MAX, TraceHeaders};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fuzz_target!(|data: &[u8]| {
    again::<SandboxMessage>(data);
    again::<ResolveReply>(data);
    again::<EmitReply>(data);
    again::<VerbRequest>(data);
    again::<VerbReply>(data);
    let text = str::from_utf8(data).unwrap_or_default();
    if let Some(context) = TraceContext::parse(text) {
        assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
    }
    let state = TraceHeaders { traceparent: TRACEPARENT, tracestate: text }.accepted_state();
    assert!(
        state.len() <= TRACESTATE_MAX
            && state.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control())
    );
    let again = TraceHeaders { traceparent: TRACEPARENT, tracestate: &state }.accepted_state();
    assert_eq!(again, state);
});

/// What is read is the same when it was written and read again.
fn again<T: Debug + Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(message) = bounded(data, 96, || decode::<T>(data)) else { return };
    let bytes = encode(&message);
    let again: T = decode(&bytes).expect("what was written is a message");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}
