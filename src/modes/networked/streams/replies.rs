//! Replies with entries. Runs in the shim daemon.
//!
//! Invariant: whatever an entry holds, it is read: one that could not be would stay in its group for ever.

use redis::Value;

use super::StreamEntry;

/// The entries of `XREADGROUP` on one stream.
pub(super) fn delivered(reply: Value) -> Vec<StreamEntry> {
    let streams = match reply {
        Value::Array(streams) => {
            streams.into_iter().filter_map(|it| array(it).into_iter().nth(1)).collect()
        }
        Value::Map(streams) => streams.into_iter().map(|(_, entries)| entries).collect(),
        _ => Vec::new(),
    };
    streams.into_iter().flat_map(entries).collect()
}

/// Where `XAUTOCLAIM` goes on, and its entries.
pub(super) fn claimed(reply: Value) -> (Option<String>, Vec<StreamEntry>) {
    let mut parts = array(reply).into_iter();
    let cursor = parts.next().and_then(text);
    (cursor, parts.next().map(entries).unwrap_or_default())
}

fn entries(value: Value) -> Vec<StreamEntry> {
    array(value).into_iter().filter_map(entry).collect()
}

/// `None` for an entry that was deleted while it was pending.
fn entry(value: Value) -> Option<StreamEntry> {
    let mut parts = array(value).into_iter();
    let id = parts.next().and_then(text)?;
    let mut bytes = match parts.next()? {
        Value::Array(fields) => fields.into_iter().map(bytes),
        _ => return None,
    };
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (bytes.next(), bytes.next()) {
        fields.push((name, value));
    }
    Some(StreamEntry { id, fields })
}

fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    }
}

fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    fn entry_of(id: &str, fields: &[&[u8]]) -> Value {
        let fields = fields.iter().map(|bytes| bulk(bytes)).collect();
        Value::Array(vec![bulk(id.as_bytes()), Value::Array(fields)])
    }

    #[test]
    fn entries_of_any_bytes_are_read() {
        let entries =
            vec![entry_of("1-0", &[b"a", b"1", b"\xff", b"\xfe\x00"]), entry_of("2-0", &[])];
        let stream = Value::Array(vec![bulk(b"orders"), Value::Array(entries.clone())]);
        let expected = delivered(Value::Array(vec![stream]));
        let ids: Vec<_> = expected.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids, ["1-0", "2-0"]);
        assert_eq!(expected[0].fields[1], (b"\xff".to_vec(), b"\xfe\x00".to_vec()));
        assert_eq!((expected[0].field("a"), expected[0].field("b")), (Some(&b"1"[..]), None));
        // RESP3.
        let map = Value::Map(vec![(bulk(b"orders"), Value::Array(entries.clone()))]);
        assert_eq!(delivered(map), expected);
        let reply = vec![bulk(b"7-0"), Value::Array(entries), Value::Array(Vec::new())];
        assert_eq!(claimed(Value::Array(reply)), (Some("7-0".to_owned()), expected));
    }

    #[test]
    fn deleted_entries_and_empty_replies_are_none() {
        assert_eq!(delivered(Value::Nil), []);
        let gone = Value::Array(vec![bulk(b"1-0"), Value::Nil]);
        let reply = vec![bulk(b"0-0"), Value::Array(vec![gone, Value::Nil])];
        assert_eq!(claimed(Value::Array(reply)), (Some("0-0".to_owned()), Vec::new()));
        assert_eq!(claimed(Value::Okay), (None, Vec::new()));
    }
}
