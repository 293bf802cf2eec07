//! Messages between shim, zygote, builder and sandboxes (`wire::control`), and trace contexts (`wire::trace`).
#![no_main]

use std::fmt::Debug;

use cwasi_fuzz::memory::bounded;
use cwasi_fuzz::wire::control::{
    EmitReply, ResolveReply, SandboxMessage, VerbReply, VerbRequest, decode, encode,
};
use cwasi_fuzz::wire::trace::TraceContext;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fuzz_target!(|data: &[u8]| {
    again::<SandboxMessage>(data);
    again::<ResolveReply>(data);
    again::<EmitReply>(data);
    again::<VerbRequest>(data);
    again::<VerbReply>(data);
    if let Some(context) = str::from_utf8(data).ok().and_then(TraceContext::parse) {
        assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
    }
});

/// What is read is the same when it was written and read again.
fn again<T: Debug + Serialize + DeserializeOwned>(data: &[u8]) {
    let Ok(message) = bounded(data, 96, || decode::<T>(data)) else { return };
    let bytes = encode(&message);
    let again: T = decode(&bytes).expect("what was written is a message");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}
