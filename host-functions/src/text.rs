//! Text from guests: copied before it is validated, or cut to a bound at a whole character. Runs in a worker.

use cwasi_abi::Errno;

/// A text of a guest, copied before it is validated. The caller bounds its length.
///
/// # Errors
/// [`Errno::InvalidArgument`] when it is no UTF-8.
pub(crate) fn owned(bytes: &[u8]) -> Result<String, Errno> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Errno::InvalidArgument)
}

/// A text of a guest for people, of at most `max` bytes: copied before it is validated ([`GuestText`] says why), cut at
/// a whole character, and with U+FFFD for what is no UTF-8.
#[must_use]
pub fn lossy_text(bytes: &[u8], max: usize) -> String {
    // One byte more: it says whether a character ends at the bound.
    let copy = bytes[..bytes.len().min(max.saturating_add(1))].to_vec();
    String::from_utf8_lossy(cut(&copy, max)).into_owned()
}

/// Bytes of a guest that should be a text of at most `N` bytes.
///
/// They are a copy: behind a leased region a process of the trust group may change the guest's bytes at any time, and a
/// `str` whose bytes change is undefined behaviour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestText<const N: usize> {
    bytes: [u8; N],
    /// Length of the guest's text, which may be more than `N`.
    pub(crate) len: usize,
}

impl<const N: usize> GuestText<N> {
    /// Copies the first `N` bytes.
    pub(crate) fn copy(bytes: &[u8]) -> Self {
        let mut copy = Self { bytes: [0; N], len: bytes.len() };
        let kept = bytes.len().min(N);
        copy.bytes[..kept].copy_from_slice(&bytes[..kept]);
        copy
    }

    /// What was copied.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.min(N)]
    }

    /// The text.
    ///
    /// # Errors
    /// [`Errno::InvalidArgument`] when it is longer than `N` bytes or no UTF-8.
    pub(crate) fn as_str(&self) -> Result<&str, Errno> {
        if self.len > N {
            return Err(Errno::InvalidArgument);
        }
        str::from_utf8(self.as_bytes()).map_err(|_| Errno::InvalidArgument)
    }
}

/// At most `max` bytes, not ending inside a character.
fn cut(bytes: &[u8], max: usize) -> &[u8] {
    if bytes.len() <= max {
        return bytes;
    }
    let is_continuation = |byte: &u8| byte & 0xC0 == 0x80;
    // A character has at most three continuation bytes; bytes that are no UTF-8 are cut where they are.
    let end = (max.saturating_sub(3)..=max).rev().find(|end| !is_continuation(&bytes[*end]));
    &bytes[..end.unwrap_or(max)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_is_a_copy_within_its_bound() {
        let mut bytes = *b"name";
        let text = GuestText::<4>::copy(&bytes);
        bytes.fill(0xff);
        assert_eq!(text.as_str(), Ok("name"));
        assert_eq!(GuestText::<4>::copy(&bytes).as_str(), Err(Errno::InvalidArgument));
        let long = GuestText::<3>::copy(b"name");
        assert_eq!((long.as_bytes(), long.as_str()), (&b"nam"[..], Err(Errno::InvalidArgument)));
        assert_eq!(GuestText::<3>::copy(b"").as_str(), Ok(""));
    }

    #[test]
    fn texts_for_people_have_a_bound_and_whole_characters() {
        for (bytes, max, text) in [
            (&b"oops"[..], 9, "oops"),
            (b"oops", 4, "oops"),
            (b"oops", 3, "oop"),
            ("a\u{20ac}b".as_bytes(), 3, "a"),
            ("a\u{20ac}b".as_bytes(), 4, "a\u{20ac}"),
            (b"a\xffb", 9, "a\u{fffd}b"),
            (b"", 0, ""),
        ] {
            assert_eq!(lossy_text(bytes, max), text, "{bytes:?} {max}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_text_is_a_text(text in ".{0,60}", max in 4_usize..40) {
            let short = cut(text.as_bytes(), max);
            prop_assert!(short.len() <= max);
            prop_assert!(text.len() <= max || short.len() + 3 >= max);
            prop_assert!(str::from_utf8(short).is_ok_and(|short| text.starts_with(short)));
        }

        #[test]
        fn any_bytes_are_cut(bytes in proptest::collection::vec(any::<u8>(), 0..60), max in 4_usize..40) {
            prop_assert!(cut(&bytes, max).len() <= max);
        }
    }
}
