//! The payload of a fan-in's handler: all parts of one group.

use std::fmt;

use cwasi_abi::{PartEntry, PartsBlock, PartsError, parts_head, parts_header_len};

/// The parts of one group, in the order of their numbers, each where it arrived: large ones are not copied.
///
/// A handler takes them where the function has the annotation `cwasi.fan-in`. Its response goes to every part's
/// caller. Parts are missing only where the function also has `cwasi.fan-in.partial=deliver`.
///
/// # Example
/// ```
/// # mod guest {
/// #[cwasi::handler]
/// fn merge(parts: cwasi::Parts<'_>) -> Vec<u8> {
///     parts.iter().flat_map(|part| part.bytes).copied().collect()
/// }
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Parts<'a>(PartsBlock<'a>);

/// One part of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// Its place among the parts, from 0, as its caller said.
    pub number: u32,
    /// Its payload.
    pub bytes: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The parts in a block as the host lays it out.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(block: &'a [u8]) -> Result<Self, PartsError> {
        PartsBlock::decode(block).map(Self)
    }

    /// How many parts the group should have.
    #[must_use]
    pub const fn expected(&self) -> u32 {
        self.0.expected()
    }

    /// How many of them are here.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// True when none is here.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts that are here, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Part<'a>> + use<'a> {
        self.0.iter().map(|(number, bytes)| Part { number, bytes })
    }

    /// The numbers of those that are not, ascending.
    pub fn missing(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.missing()
    }
}

impl fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("number", &self.number)
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// A block of `expected` parts of which these are here, by ascending numbers: for the unit tests of handlers, which
/// [decode](Parts::decode) it.
///
/// # Panics
/// When the parts are more than 4 GiB.
#[must_use]
pub fn parts_block(expected: u32, parts: &[(u32, &[u8])]) -> Vec<u8> {
    let small = |len: usize| u32::try_from(len).expect("a block of parts has less than 4 GiB");
    let mut block = parts_head(expected, small(parts.len())).to_vec();
    let mut end = parts_header_len(parts.len());
    for (number, bytes) in parts {
        let (offset, len) = (small(end), small(bytes.len()));
        end += bytes.len();
        block.extend(PartEntry { offset, len, number: *number, reserved: 0 }.to_bytes());
    }
    parts.iter().for_each(|(_, bytes)| block.extend(*bytes));
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_where_they_were_put() {
        let block = parts_block(4, &[(0, b"a"), (2, b""), (3, b"ccc")]);
        let parts = Parts::decode(&block).unwrap();
        assert_eq!((parts.expected(), parts.len(), parts.is_empty()), (4, 3, false));
        let third = Part { number: 3, bytes: b"ccc" };
        assert_eq!(parts.iter().last(), Some(third));
        assert_eq!(parts.missing().collect::<Vec<_>>(), [1]);
        assert!(format!("{parts:?}").contains("number: 3, len: 3"));
    }

    #[test]
    fn another_payload_is_an_error_that_says_what_to_do() {
        let error = Parts::decode(b"an ordinary payload").unwrap_err();
        assert!(error.to_string().contains("needs the annotation cwasi.fan-in"), "{error}");
    }
}
