//! `context_set(key_ptr, key_len, value_ptr, value_len) -> errno` and `context_add` of the same form. Run in a worker.

use cwasi_abi::response_head::is_settable;
use cwasi_abi::{Errno, METADATA_ENTRIES_MAX, METADATA_MAX, METADATA_OVERHEAD, context_key};

use crate::text::owned;
use crate::{GuestMemory, GuestPtr, Host};

/// Sets the status or a header of the response of an HTTP request. The last value of a key counts; an empty one removes
/// it. Callers that do not come by HTTP ignore it.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::InvalidArgument`] for another key, or a value that HTTP does not allow;
/// [`Errno::PayloadTooLarge`] beyond [`METADATA_MAX`] bytes or [`METADATA_ENTRIES_MAX`] values.
pub fn context_set(
    host: &mut Host,
    memory: &impl GuestMemory,
    key: (GuestPtr, u32),
    value: (GuestPtr, u32),
) -> Result<(), Errno> {
    let (key, value) = (text(memory, key)?, text(memory, value)?);
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
    let (key, value) = (text(memory, key)?, text(memory, value)?);
    host.add_metadata(&key, &value)
}

/// Copied first: the guest's bytes may be in a leased region, which another process can change.
fn text(memory: &impl GuestMemory, (ptr, len): (GuestPtr, u32)) -> Result<String, Errno> {
    let bytes = memory.slice(ptr, len)?;
    if bytes.len() > METADATA_MAX {
        return Err(Errno::PayloadTooLarge);
    }
    owned(bytes)
}

impl Host {
    /// [`context_set`] with Rust's types.
    ///
    /// # Errors
    /// As [`context_set`].
    pub fn set_metadata(&mut self, key: &str, value: &str) -> Result<(), Errno> {
        if !is_settable(key, value) {
            return Err(Errno::InvalidArgument);
        }
        if value.is_empty() {
            self.metadata.retain(|(known, _)| known != key);
            return Ok(());
        }
        self.check_room(key, value, |known| known != key)?;
        let Some(position) = self.metadata.iter().position(|(known, _)| known == key) else {
            self.metadata.push((key.to_owned(), value.to_owned()));
            return Ok(());
        };
        value.clone_into(&mut self.metadata[position].1);
        // The others of that name.
        let mut number = 0..;
        self.metadata.retain(|(known, _)| number.next() <= Some(position) || known != key);
        Ok(())
    }

    /// [`context_add`] with Rust's types.
    ///
    /// # Errors
    /// As [`context_add`].
    pub fn add_metadata(&mut self, key: &str, value: &str) -> Result<(), Errno> {
        if !is_settable(key, value) || key == context_key::HTTP_STATUS {
            return Err(Errno::InvalidArgument);
        }
        self.check_room(key, value, |_| true)?;
        self.metadata.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Whether one more fits beside those that stay.
    fn check_room(
        &self,
        key: &str,
        value: &str,
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), Errno> {
        let (mut count, mut bytes) = (1, key.len() + value.len() + METADATA_OVERHEAD);
        for (key, value) in self.metadata.iter().filter(|(known, _)| stays(known)) {
            count += 1;
            bytes += key.len() + value.len() + METADATA_OVERHEAD;
        }
        if count > METADATA_ENTRIES_MAX || bytes > METADATA_MAX {
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
        let mut memory = FakeMemory::of(16 << 10);
        memory.write(GuestPtr(0), key.as_bytes()).unwrap();
        memory.write(GuestPtr(4096), value.as_bytes()).unwrap();
        let length = |text: &str| u32::try_from(text.len()).unwrap();
        let (key, value) = ((GuestPtr(0), length(key)), (GuestPtr(4096), length(value)));
        context_set(host, &memory, key, value)
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
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
        let expected = [pair("http.status", "201"), pair("http.header.content-type", "text/html")];
        assert_eq!(host.take_metadata(), expected);
        assert_eq!(set(&mut host, "http.status", "500"), Ok(()));
        host.begin(Context::default());
        assert!(host.take_metadata().is_empty());
    }

    #[test]
    fn an_added_value_stands_beside_the_others_until_one_is_set() {
        let mut host = host();
        let cookie = "http.header.set-cookie";
        assert_eq!(host.add_metadata(cookie, "a=1"), Ok(()));
        assert_eq!(host.add_metadata("http.header.x", ""), Ok(()));
        assert_eq!(host.add_metadata(cookie, "b=é"), Ok(()));
        assert_eq!(host.add_metadata("http.status", "201"), Err(Errno::InvalidArgument));
        let expected = [pair(cookie, "a=1"), pair("http.header.x", ""), pair(cookie, "b=é")];
        assert_eq!(host.metadata, expected);
        assert_eq!(set(&mut host, cookie, "c=3"), Ok(()));
        assert_eq!(host.metadata, [pair(cookie, "c=3"), pair("http.header.x", "")]);
        assert_eq!(set(&mut host, cookie, ""), Ok(()));
        assert_eq!(host.take_metadata(), [pair("http.header.x", "")]);
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
        let long = "x".repeat(METADATA_MAX);
        assert_eq!(set(&mut host, "http.header.a", &long), Err(Errno::PayloadTooLarge));
        for number in 0..METADATA_ENTRIES_MAX {
            assert_eq!(set(&mut host, &format!("http.header.{number}"), "x"), Ok(()));
        }
        assert_eq!(set(&mut host, "http.header.more", "x"), Err(Errno::PayloadTooLarge));
        assert_eq!(host.add_metadata("http.header.0", "x"), Err(Errno::PayloadTooLarge));
        assert_eq!(set(&mut host, "http.header.0", "y"), Ok(()));
    }
}
