//! `context_get(key_ptr, key_len, value_ptr, value_capacity, value_len_out) -> errno`. Runs in a worker.

use cwasi_abi::{Errno, METADATA_MAX};

use crate::text::owned;
use crate::{GuestMemory, GuestPtr, Host};

/// Longest key in bytes: a header's name, which is within the bound of a request's head.
const KEY_MAX: usize = METADATA_MAX;
/// Length of a `u32` in linear memory.
const U32_LEN: u32 = 4;

/// Writes the value of a context key without a terminator, and its length in bytes. It is UTF-8, but for headers that
/// came with other bytes.
///
/// A value that does not fit is not written, only its length: ask again with a buffer of that length.
///
/// # Errors
/// [`Errno::BadPointer`], [`Errno::InvalidArgument`] for a key that does not exist,
/// [`Errno::BufferTooSmall`].
pub fn context_get(
    host: &Host,
    memory: &mut impl GuestMemory,
    key: (GuestPtr, u32),
    value: (GuestPtr, u32),
    value_len_out: GuestPtr,
) -> Result<(), Errno> {
    memory.slice(value.0, value.1)?;
    memory.slice(value_len_out, U32_LEN)?;
    let key = memory.slice(key.0, key.1)?;
    if key.len() > KEY_MAX {
        return Err(Errno::InvalidArgument);
    }
    let bytes = host.value(&owned(key)?).ok_or(Errno::InvalidArgument)?;
    let len = u32::try_from(bytes.len()).map_err(|_| Errno::Internal)?;
    memory.write(value_len_out, &len.to_le_bytes())?;
    if len > value.1 {
        return Err(Errno::BufferTooSmall);
    }
    memory.write(value.0, &bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cwasi_sys::clock::Deadline;
    use cwasi_wire::envelope::Metadata;
    use cwasi_wire::ids::RunId;

    use super::*;
    use crate::Context;
    use crate::fake::{FakeMemory, host};

    fn get(key: &str, capacity: u32) -> (Result<(), Errno>, u32, Vec<u8>) {
        let mut host = host();
        host.begin(Context {
            function: "extract".into(),
            attempt: 2,
            caller: "camera".into(),
            run: Some(RunId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])),
            deadline: Some(Deadline::after(Duration::from_secs(100))),
            ..Context::default()
        });
        let mut memory = FakeMemory::of(256);
        memory.write(GuestPtr(0), key.as_bytes()).unwrap();
        let key = (GuestPtr(0), u32::try_from(key.len()).unwrap());
        let outcome = context_get(&host, &mut memory, key, (GuestPtr(64), capacity), GuestPtr(60));
        let len = u32::from_le_bytes(memory.bytes()[60..64].try_into().unwrap());
        (outcome, len, memory.bytes()[64..64 + 32].to_vec())
    }

    #[test]
    fn every_key_has_a_value_and_others_have_none() {
        let (outcome, len, bytes) = get("function", 32);
        assert_eq!((outcome, len, &bytes[..7]), (Ok(()), 7, &b"extract"[..]));
        assert_eq!(get("attempt", 32).2[0], b'2');
        assert_eq!(get("workflow", 32).1, 0);
        assert_eq!(get("run_id", 32).2, b"000102030405060708090a0b0c0d0e0f");
        let (outcome, len, bytes) = get("deadline_ms", 32);
        let text = String::from_utf8(bytes[..len as usize].to_vec()).unwrap();
        assert_eq!(outcome, Ok(()));
        assert!((1..=100_000).contains(&text.parse::<u64>().unwrap()));
        assert_eq!(get("password", 32).0, Err(Errno::InvalidArgument));
    }

    #[test]
    fn a_request_by_http_shows_its_head_and_another_call_shows_none() {
        let pairs: [(&str, &[u8]); 6] = [
            ("http.header.bad", b"1\nx-forged: 2"),
            ("http.method", b"PUT"),
            ("http.header.accept", b"a"),
            ("http.header.x", b""),
            ("http.header.accept", b"\xe9"),
            ("http.header.cookie", b"c=1"),
        ];
        let metadata = pairs.map(|(key, value)| Metadata::of(key, value)).to_vec();
        let by_http = Context { metadata, ..Context::default() };
        let value = |context: &Context, key| context.value(key).unwrap();
        assert_eq!(value(&by_http, "http.method"), b"PUT");
        assert_eq!(value(&by_http, "http.header.accept"), b"a, \xe9");
        assert_eq!(value(&by_http, "http.headers"), b"accept\nx\ncookie\n");
        let fields = b"accept: a\nx: \naccept: \xe9\ncookie: c=1\n";
        assert_eq!(value(&by_http, "http.fields"), fields);
        for key in ["http.method", "http.path", "http.headers", "http.fields", "http.header.accept"]
        {
            assert_eq!(value(&Context::default(), key), b"", "{key}");
        }
    }

    #[test]
    fn a_small_buffer_learns_the_length_and_stays_untouched() {
        let (outcome, len, bytes) = get("function", 6);
        assert_eq!((outcome, len), (Err(Errno::BufferTooSmall), 7));
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
