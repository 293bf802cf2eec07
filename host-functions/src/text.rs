//! Text from guests, cut to a bound at a whole character. Runs in a worker.

/// At most `max` bytes, not ending inside a character.
pub(crate) fn cut(bytes: &[u8], max: usize) -> &[u8] {
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
