//! `context_set(key_ptr, key_len, value_ptr, value_len) -> errno` and `context_add` of the same form. Run in a worker.

use cwasi_abi::response_head::{is_length_for_head, is_settable};
use cwasi_abi::{Errno, METADATA_ENTRIES_MAX, METADATA_MAX, context_key};
use cwasi_wire::envelope::Metadata;
use cwasi_wire::metadata::pair_length;

use crate::text::owned;
use crate::{GuestMemory, GuestPtr, Host};

/// Sets the status or a header of the response of an HTTP request. The last value of a key counts; an empty one removes
/// it. Callers that do not come by HTTP ignore it.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::InvalidArgument`] for another key, or a value that HTTP does not allow;
/// [`Errno::PayloadTooLarge`] beyond the bytes of [`crate::Context::max_head`] or [`METADATA_ENTRIES_MAX`] headers.
pub fn context_set(
    host: &mut Host,
    memory: &impl GuestMemory,
    key: (GuestPtr, u32),
    value: (GuestPtr, u32),
) -> Result<(), Errno> {
    let (key, value) = pair(memory, key, value)?;
    host.set_metadata(&key, &value)
}

/// Adds a header to those of the response, beside others of the same name (`set-cookie`, `link`). The value may be empty.
///
/// # Errors
/// As [`context_set`]; [`Errno::InvalidArgument`] for the status, which has one value.
pub fn context_add(
    host: &mut Host,
    memory: &impl GuestMemory,
    key: (GuestPtr, u32),
    value: (GuestPtr, u32),
) -> Result<(), Errno> {
    let (key, value) = pair(memory, key, value)?;
    host.add_metadata(&key, &value)
}

/// A guest's key and value.
fn pair(
    memory: &impl GuestMemory,
    key: (GuestPtr, u32),
    value: (GuestPtr, u32),
) -> Result<(String, Vec<u8>), Errno> {
    Ok((owned(&copy(memory, key)?)?, copy(memory, value)?))
}

/// Copied first: the guest's bytes may be in a leased region, which another process can change.
fn copy(memory: &impl GuestMemory, (ptr, len): (GuestPtr, u32)) -> Result<Vec<u8>, Errno> {
    let bytes = memory.slice(ptr, len)?;
    if bytes.len() > METADATA_MAX {
        return Err(Errno::PayloadTooLarge);
    }
    Ok(bytes.to_vec())
}

impl Host {
    /// [`context_set`] with Rust's types.
    ///
    /// # Errors
    /// As [`context_set`].
    pub fn set_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), Errno> {
        self.check_pair(key, value)?;
        if value.is_empty() {
            self.metadata.retain(|pair| pair.key != key);
            return Ok(());
        }
        self.check_room(key, value, |known| known != key)?;
        let Some(position) = self.metadata.iter().position(|pair| pair.key == key) else {
            self.metadata.push(Metadata::of(key, value));
            return Ok(());
        };
        value.clone_into(&mut self.metadata[position].value);
        // The others of that name.
        let mut number = 0..;
        self.metadata.retain(|pair| number.next() <= Some(position) || pair.key != key);
        Ok(())
    }

    /// [`context_add`] with Rust's types.
    ///
    /// # Errors
    /// As [`context_add`].
    pub fn add_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), Errno> {
        self.check_pair(key, value)?;
        if key == context_key::HTTP_STATUS {
            return Err(Errno::InvalidArgument);
        }
        self.check_room(key, value, |_| true)?;
        self.metadata.push(Metadata::of(key, value));
        Ok(())
    }

    fn check_pair(&self, key: &str, value: &[u8]) -> Result<(), Errno> {
        let is_length = self.context.is_head() && is_length_for_head(key, value);
        if is_settable(key, value) || is_length { Ok(()) } else { Err(Errno::InvalidArgument) }
    }

    /// True if the invocation answers the HTTP method `HEAD`.
    #[must_use]
    pub fn answers_head(&self) -> bool {
        self.context.is_head()
    }

    /// Most bytes of metadata that this invocation may set.
    #[must_use]
    pub fn max_head(&self) -> usize {
        self.context.max_head.unwrap_or(METADATA_MAX)
    }

    /// Whether one more fits beside those that stay. The status is no header.
    fn check_room(
        &self,
        key: &str,
        value: &[u8],
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), Errno> {
        let is_header = |key: &str| usize::from(key != context_key::HTTP_STATUS);
        let (mut count, mut bytes) = (is_header(key), pair_length(key, value));
        for pair in self.metadata.iter().filter(|pair| stays(&pair.key)) {
            count += is_header(&pair.key);
            bytes += pair.length();
        }
        if count > METADATA_ENTRIES_MAX || bytes > self.max_head() {
            return Err(Errno::PayloadTooLarge);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::Context;
    use crate::fake::{FakeMemory, host};

    fn set(host: &mut Host, key: &str, value: &str) -> Result<(), Errno> {
        set_bytes(host, key, value.as_bytes())
    }

    fn set_bytes(host: &mut Host, key: &str, value: &[u8]) -> Result<(), Errno> {
        let mut memory = FakeMemory::of(128 << 10);
        memory.write(GuestPtr(0), key.as_bytes()).unwrap();
        memory.write(GuestPtr(4096), value).unwrap();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
        let (key, value) = ((GuestPtr(0), length(key.as_bytes())), (GuestPtr(4096), length(value)));
        context_set(host, &memory, key, value)
    }

    fn context(max_head: usize, method: &str) -> Context {
        let metadata = vec![Metadata::of("http.method", method)];
        Context { metadata, max_head: Some(max_head), ..Context::default() }
    }

    fn metadata(key: &str, value: &str) -> Metadata {
        Metadata::of(key, value)
    }

    #[test]
    fn the_last_value_of_a_key_counts_and_the_next_invocation_has_none() {
        let mut host = host();
        for (key, value) in [
            ("http.status", "404"),
            ("http.header.content-type", "text/html"),
            ("http.header.x", "gone"),
            ("http.status", "201"),
            ("http.header.x", ""),
        ] {
            assert_eq!(set(&mut host, key, value), Ok(()), "{key}");
        }
        let expected =
            [metadata("http.status", "201"), metadata("http.header.content-type", "text/html")];
        assert_eq!(host.take_metadata(), expected);
        assert_eq!(set(&mut host, "http.status", "500"), Ok(()));
        host.begin(context(METADATA_MAX, "GET"));
        assert!(host.take_metadata().is_empty());
    }

    #[test]
    fn an_added_value_stands_beside_the_others_until_one_is_set() {
        let mut host = host();
        let cookie = "http.header.set-cookie";
        assert_eq!(host.add_metadata(cookie, "a=1".as_bytes()), Ok(()));
        assert_eq!(host.add_metadata("http.header.x", "".as_bytes()), Ok(()));
        assert_eq!(host.add_metadata(cookie, "b=é".as_bytes()), Ok(()));
        assert_eq!(host.add_metadata("http.status", "201".as_bytes()), Err(Errno::InvalidArgument));
        let expected =
            [metadata(cookie, "a=1"), metadata("http.header.x", ""), metadata(cookie, "b=é")];
        assert_eq!(host.metadata, expected);
        assert_eq!(set(&mut host, cookie, "c=3"), Ok(()));
        assert_eq!(host.metadata, [metadata(cookie, "c=3"), metadata("http.header.x", "")]);
        assert_eq!(set(&mut host, cookie, ""), Ok(()));
        assert_eq!(host.take_metadata(), [metadata("http.header.x", "")]);
    }

    #[test]
    fn values_that_break_the_response_are_refused() {
        let mut host = host();
        for (key, value) in [
            ("function", "x"),
            ("http.method", "GET"),
            ("http.status", "100"),
            ("http.status", "600"),
            ("http.status", "+20"),
            ("http.header.", "x"),
            ("http.header.X", "x"),
            ("http.header.a b", "x"),
            ("http.header.a", "x\r\nb: c"),
            ("http.header.content-length", "3"),
            ("http.header.transfer-encoding", "chunked"),
        ] {
            assert_eq!(set(&mut host, key, value), Err(Errno::InvalidArgument), "{key}: {value}");
        }
        assert!(host.take_metadata().is_empty());
    }

    #[test]
    fn bytes_and_keys_are_bounded() {
        let mut host = host();
        host.begin(context(METADATA_MAX, "GET"));
        let long = "x".repeat(METADATA_MAX);
        assert_eq!(set(&mut host, "http.header.a", &long), Err(Errno::PayloadTooLarge));
        assert_eq!(set(&mut host, "http.status", "201"), Ok(()));
        for number in 0..METADATA_ENTRIES_MAX {
            assert_eq!(set(&mut host, &format!("http.header.{number}"), "x"), Ok(()));
        }
        assert_eq!(set(&mut host, "http.header.more", "x"), Err(Errno::PayloadTooLarge));
        assert_eq!(host.add_metadata("http.header.0", "x".as_bytes()), Err(Errno::PayloadTooLarge));
        assert_eq!(set(&mut host, "http.header.0", "y"), Ok(()));
        let room = METADATA_MAX - pair_length("http.header.a", b"");
        host.begin(context(METADATA_MAX, "GET"));
        assert_eq!(set(&mut host, "http.header.a", &long[..=room]), Err(Errno::PayloadTooLarge));
        assert_eq!(set(&mut host, "http.header.a", &long[..room]), Ok(()));
        assert_eq!(set(&mut host, "http.header.b", "x"), Err(Errno::PayloadTooLarge));
        host.begin(context(40, "GET"));
        assert_eq!(set(&mut host, "http.header.a", &long[..19]), Ok(()));
        assert_eq!(set(&mut host, "http.header.a", &long[..20]), Err(Errno::PayloadTooLarge));
    }

    #[test]
    fn values_are_bytes() {
        let mut host = host();
        host.begin(context(METADATA_MAX, "GET"));
        assert_eq!(set_bytes(&mut host, "http.header.location", b"/\xe9"), Ok(()));
        assert_eq!(host.take_metadata(), [Metadata::of("http.header.location", b"/\xe9")]);
    }

    #[test]
    fn only_the_response_to_head_names_a_length() {
        let mut host = host();
        for (method, outcome) in [("HEAD", Ok(())), ("GET", Err(Errno::InvalidArgument))] {
            host.begin(context(METADATA_MAX, method));
            assert_eq!(set(&mut host, "http.header.content-length", "7"), outcome, "{method}");
            let twice = set(&mut host, "http.header.content-length", "7, 7");
            assert_eq!(twice, Err(Errno::InvalidArgument));
        }
    }
}
