//! The parts block: the payload of a fan-in's handler, with all parts of one group.
//!
//! ```text
//! offset  size     field
//!      0  4        magic (PARTS_MAGIC)
//!      4  4        version (1)
//!      8  4        expected: how many parts make the group complete, at most PARTS_MAX
//!     12  4        count: entries that follow, at most `expected`
//!     16  16·count entries in ascending order of their numbers: {offset, len, number, reserved = 0}
//!      …  …        the parts' bytes, each at its offset
//! ```
//!
//! All fields are little-endian `u32`. Offsets count from the start of the block and lie behind the entries;
//! a part that came as shared memory begins a page of its own, the others follow each other.

/// First four bytes of a parts block: `CWPB`.
pub const PARTS_MAGIC: u32 = u32::from_le_bytes(*b"CWPB");
/// Version of the parts block described here.
pub const PARTS_VERSION: u32 = 1;
/// Most parts of one group.
pub const PARTS_MAX: u32 = 1024;

/// Bytes before the entries.
const HEAD_LEN: usize = 16;
/// Bytes of one entry.
const ENTRY_LEN: usize = 16;

/// Length of a parts block's header with `count` entries, in bytes.
#[must_use]
pub const fn parts_header_len(count: usize) -> usize {
    HEAD_LEN + count * ENTRY_LEN
}

/// The bytes before the entries.
#[must_use]
pub fn parts_head(expected: u32, count: u32) -> [u8; 16] {
    super::layout::words([PARTS_MAGIC, PARTS_VERSION, expected, count])
}

/// Where one part lies in its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PartEntry {
    /// Offset of its first byte, from the start of the block.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// Its place among the parts, from 0.
    pub number: u32,
    /// Zero.
    pub reserved: u32,
}

impl PartEntry {
    /// As it lies in the block.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ENTRY_LEN] {
        super::layout::words([self.offset, self.len, self.number, self.reserved])
    }

    /// From the bytes of an entry.
    fn from_bytes(bytes: &[u8; ENTRY_LEN]) -> Self {
        let [offset, len, number, reserved] = read_words(bytes);
        Self { offset, len, number, reserved }
    }
}

/// Why bytes are no parts block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsError {
    /// Another kind of payload: the function runs without `cwasi.fan-in`.
    NoBlock,
    /// A version that this side does not know.
    Version(u32),
    /// Numbers that contradict each other, or lead outside the block.
    Malformed,
}

impl core::fmt::Display for PartsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoBlock => f.write_str(
                "the payload is no block of parts: a handler that takes parts needs the annotation cwasi.fan-in",
            ),
            Self::Version(version) => {
                write!(f, "parts block of version {version}, {PARTS_VERSION} is known here")
            }
            Self::Malformed => f.write_str("parts block whose numbers contradict each other"),
        }
    }
}

impl core::error::Error for PartsError {}

/// A checked parts block: every entry lies inside it, numbers ascend and are less than `expected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartsBlock<'a> {
    bytes: &'a [u8],
    entries: &'a [[u8; ENTRY_LEN]],
    expected: u32,
}

impl<'a> PartsBlock<'a> {
    /// Checks a block.
    ///
    /// # Errors
    /// When it is none; nothing outside `bytes` is ever read.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PartsError> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>().ok_or(PartsError::NoBlock)?;
        let [magic, version, expected, count] = read_words(head);
        if magic != PARTS_MAGIC {
            return Err(PartsError::NoBlock);
        }
        if version != PARTS_VERSION {
            return Err(PartsError::Version(version));
        }
        if expected > PARTS_MAX || count > expected {
            return Err(PartsError::Malformed);
        }
        let count = usize::try_from(count).map_err(|_| PartsError::Malformed)?;
        let (entries, _) = rest.as_chunks::<ENTRY_LEN>();
        let entries = entries.get(..count).ok_or(PartsError::Malformed)?;
        let block = Self { bytes, entries, expected };
        let mut next = 0;
        for entry in block.entries() {
            if entry.number < next || entry.number >= expected || block.part(entry).is_none() {
                return Err(PartsError::Malformed);
            }
            next = entry.number + 1;
        }
        Ok(block)
    }

    /// How many parts make the group complete.
    #[must_use]
    pub const fn expected(&self) -> u32 {
        self.expected
    }

    /// How many parts are here.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when no part is here.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entries(&self) -> impl Iterator<Item = PartEntry> + use<'a> {
        self.entries.iter().map(PartEntry::from_bytes)
    }

    fn part(&self, entry: PartEntry) -> Option<&'a [u8]> {
        let start = usize::try_from(entry.offset).ok()?;
        let end = start.checked_add(usize::try_from(entry.len).ok()?)?;
        (start >= parts_header_len(self.entries.len())).then_some(())?;
        self.bytes.get(start..end)
    }

    /// Number and bytes of each part, in ascending order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'a [u8])> + use<'a> {
        let block = *self;
        self.entries().map(move |entry| (entry.number, block.part(entry).unwrap_or_default()))
    }

    /// The numbers of the parts that are not here, ascending.
    pub fn missing(&self) -> impl Iterator<Item = u32> + use<'a> {
        let mut here = self.entries().map(|entry| entry.number).peekable();
        (0..self.expected).filter(move |number| here.next_if_eq(number).is_none())
    }
}

fn read_words(bytes: &[u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*chunk);
    }
    words
}

const _: () = assert!(size_of::<PartEntry>() == ENTRY_LEN);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A block of these parts, one behind the other.
    fn block(expected: u32, parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = parts_head(expected, u32::try_from(parts.len()).unwrap()).to_vec();
        let mut offset = parts_header_len(parts.len());
        for (number, part) in parts {
            let entry = PartEntry {
                offset: u32::try_from(offset).unwrap(),
                len: u32::try_from(part.len()).unwrap(),
                number: *number,
                reserved: 0,
            };
            bytes.extend(entry.to_bytes());
            offset += part.len();
        }
        parts.iter().for_each(|(_, part)| bytes.extend(*part));
        bytes
    }

    #[test]
    fn parts_and_what_is_missing() {
        let bytes = block(4, &[(0, b"a"), (2, b""), (3, b"ccc")]);
        let parts = PartsBlock::decode(&bytes).unwrap();
        assert_eq!((parts.expected(), parts.len(), parts.is_empty()), (4, 3, false));
        let all: Vec<_> = parts.iter().collect();
        assert_eq!(all, [(0, &b"a"[..]), (2, b""), (3, b"ccc")]);
        assert_eq!(parts.missing().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn malformed_blocks_are_distinguished() {
        let decode = |bytes: &[u8]| PartsBlock::decode(bytes).map(|_| ());
        assert_eq!(decode(b"any payload of some length"), Err(PartsError::NoBlock));
        assert_eq!(decode(b""), Err(PartsError::NoBlock));
        let mut other = block(1, &[(0, b"a")]);
        other[4] = 9;
        assert_eq!(decode(&other), Err(PartsError::Version(9)));
        let cases: [&[(u32, &[u8])]; 3] =
            [&[(1, b"a"), (1, b"b")], &[(1, b"a"), (0, b"b")], &[(2, b"a")]];
        for parts in cases {
            assert_eq!(decode(&block(2, parts)), Err(PartsError::Malformed), "{parts:?}");
        }
        assert_eq!(decode(&block(0, &[(0, b"a")])), Err(PartsError::Malformed));
        assert_eq!(decode(&block(PARTS_MAX + 1, &[])), Err(PartsError::Malformed));
        let whole = block(2, &[(0, b"ab"), (1, b"cd")]);
        for len in HEAD_LEN..whole.len() {
            assert_eq!(decode(&whole[..len]), Err(PartsError::Malformed), "{len}");
        }
    }

    /// True when `bytes` are no parts, or parts of these bytes.
    fn stays_inside(bytes: &[u8]) -> bool {
        let Ok(parts) = PartsBlock::decode(bytes) else { return true };
        let all = bytes.as_ptr_range();
        let inside = |part: &[u8]| {
            let part = part.as_ptr_range();
            all.start <= part.start && part.end <= all.end
        };
        parts.iter().all(|(_, part)| part.is_empty() || inside(part))
            && parts.missing().count() + parts.len() == parts.expected() as usize
    }

    proptest! {
        #[test]
        fn parts_round_trip(
            parts in prop::collection::btree_map(0..40_u32, prop::collection::vec(any::<u8>(), 0..50), 0..20),
        ) {
            let list: Vec<_> = parts.iter().map(|(number, part)| (*number, &part[..])).collect();
            let bytes = block(40, &list);
            let decoded = PartsBlock::decode(&bytes).unwrap();
            prop_assert_eq!(decoded.iter().collect::<Vec<_>>(), list);
            let missing: Vec<_> = (0..40).filter(|number| !parts.contains_key(number)).collect();
            prop_assert_eq!(decoded.missing().collect::<Vec<_>>(), missing);
        }

        #[test]
        fn no_header_leads_outside(at in 1..12_usize, value: u32, small: bool, cut in 0..60_usize) {
            let mut bytes = block(3, &[(0, b"ab"), (2, b"cd")]);
            let value = if small { value % 64 } else { value };
            bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
            bytes.truncate(bytes.len().max(cut) - cut / 2);
            prop_assert!(stays_inside(&bytes));
        }
    }
}
