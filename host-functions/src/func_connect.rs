//! `func_connect(message_ptr, message_len) -> response_len`, of the paper's prototype (2023). Runs in a worker.

use cwasi_abi::{Errno, TARGET_MAX, TRAP_MESSAGE_MAX};
use serde::Deserialize;

use crate::text::lossy_text;
use crate::{GuestMemory, GuestPtr, Host};
use cwasi_modes::{OutgoingPayload, Payload};

/// What the prototype's file names end with.
const WASM: &str = ".wasm";

/// The part of a message that the host reads. The callee gets all of it.
#[derive(Debug, Deserialize)]
struct Message {
    target_channel: String,
}

/// Calls the function that the message names, with the whole message as its payload, and overwrites the message with
/// the response. Returns the response's length in bytes.
///
/// The name is that of the callee's file in the prototype, `func_b.wasm`; the function is `func_b`.
///
/// # Errors
/// A trap of the guest, whose message says why: this ABI has no errors.
pub fn func_connect(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    message: GuestPtr,
    len: u32,
) -> Result<i32, Errno> {
    connect(host, memory, message, len).map_err(|(errno, why)| {
        host.trap_message = Some(lossy_text(why.as_bytes(), TRAP_MESSAGE_MAX));
        errno
    })
}

fn connect(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    at: GuestPtr,
    len: u32,
) -> Result<i32, (Errno, String)> {
    let outside = |errno: Errno| (errno, "its message lies outside of its memory".to_owned());
    let bytes = memory.slice(at, len).map_err(outside)?;
    let target = target(bytes).map_err(|why| (Errno::InvalidArgument, why))?;
    let called = host
        .check_call(u64::from(len))
        .and_then(|()| host.call_checked(&target, OutgoingPayload::Bytes(bytes)));
    let response = called.map_err(|error| (error.errno(), error.to_string()))?;
    write(memory, at, &response)
}

/// The name of the function that a message is for.
fn target(message: &[u8]) -> Result<String, String> {
    let message: Message = serde_json::from_slice(message).map_err(|error| {
        format!("its message is not JSON with source_channel, target_channel and payload: {error}")
    })?;
    let file = message.target_channel.trim_start_matches('/');
    let name = file.strip_suffix(WASM).unwrap_or(file);
    if name.is_empty() || name.len() > TARGET_MAX {
        return Err(format!("target_channel has 1 to {TARGET_MAX} bytes, such as `func_b.wasm`"));
    }
    Ok(name.to_owned())
}

fn write(
    memory: &mut impl GuestMemory,
    at: GuestPtr,
    response: &Payload,
) -> Result<i32, (Errno, String)> {
    let length = response.len();
    let too_long = |errno: Errno| {
        (errno, format!("there is no memory behind its message for a response of {length} bytes"))
    };
    let len = u32::try_from(length).ok().filter(|len| i32::try_from(*len).is_ok());
    let room = len.ok_or(Errno::BadPointer).and_then(|len| memory.slice_mut(at, len));
    response
        .copy_to(room.map_err(too_long)?)
        .map_err(|error| (Errno::Internal, format!("the response cannot be read: {error}")))?;
    i32::try_from(length).map_err(|_| too_long(Errno::BadPointer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::fake::{FakeMemory, host};

    const MESSAGE: &str =
        r#"{"source_channel": "a.wasm", "target_channel": "/reverse.wasm", "payload": "\u00e9"}"#;

    /// Puts the message at 16; returns what `func_connect` returns, or why the guest traps.
    fn sent(message: &str, memory: &mut FakeMemory) -> Result<i32, String> {
        let mut host = host();
        host.begin(Context::default());
        memory.write(GuestPtr(16), message.as_bytes()).unwrap();
        let len = u32::try_from(message.len()).unwrap();
        func_connect(&mut host, memory, GuestPtr(16), len)
            .map_err(|_errno| host.take_trap_message().unwrap())
    }

    #[test]
    fn the_response_overwrites_the_message() {
        let mut memory = FakeMemory::of(256);
        let len = sent(MESSAGE, &mut memory).unwrap();
        assert_eq!(usize::try_from(len).unwrap(), MESSAGE.len());
        let mut reversed = MESSAGE.as_bytes().to_vec();
        reversed.reverse();
        assert_eq!(memory.slice(GuestPtr(16), len.unsigned_abs()).unwrap(), reversed);
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let mut memory = FakeMemory::of(512);
        let mut why = |message: &str| sent(message, &mut memory).unwrap_err();
        assert!(why("func_b").starts_with("its message is not JSON"));
        assert!(why("{}").contains("target_channel"));
        assert!(why(r#"{"target_channel": ".wasm"}"#).starts_with("target_channel has"));
        assert_eq!(why(r#"{"target_channel": "nobody.wasm"}"#), "nobody is unknown");
        let long = format!(r#"{{"target_channel": "{}"}}"#, "x".repeat(TARGET_MAX + 1));
        assert!(why(&long).starts_with("target_channel has"));
        let mut host = host();
        host.begin(Context::default());
        assert_eq!(
            func_connect(&mut host, &mut memory, GuestPtr(500), 100),
            Err(Errno::BadPointer)
        );
        assert!(host.take_trap_message().unwrap().contains("outside of its memory"));
    }
}
