//! Payloads that differ from call to call, and a checksum that proves that a reader read every byte.

/// Bytes of a word.
const WORD: usize = 8;

/// Fills `bytes` with the payload of number `seed`; the sum that [`Sum`] gives for it.
pub fn fill(bytes: &mut [u8], seed: u64) -> u64 {
    let mut sum = Sum::default();
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut chunks = bytes.chunks_exact_mut(WORD);
    for chunk in &mut chunks {
        word = word.wrapping_add(0x0101_0101_0101_0101);
        chunk.copy_from_slice(&word.to_le_bytes());
        sum.words = sum.words.wrapping_add(word);
    }
    let rest = chunks.into_remainder();
    rest.fill(word.to_le_bytes()[0] | 1);
    sum.add(rest);
    sum.value()
}

/// Sum of the little-endian words of bytes that come in parts; the last word is filled up with zeroes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    words: u64,
    partial: [u8; WORD],
    len: usize,
}

impl Sum {
    /// Sum of all of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.value()
    }

    /// Adds the next part.
    pub fn add(&mut self, mut bytes: &[u8]) {
        if self.len > 0 {
            let taken = bytes.len().min(WORD - self.len);
            self.partial[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
            self.len += taken;
            bytes = &bytes[taken..];
            if self.len < WORD {
                return;
            }
            self.words = self.words.wrapping_add(u64::from_le_bytes(self.partial));
            (self.len, self.partial) = (0, [0; WORD]);
        }
        let (words, rest) = bytes.as_chunks::<WORD>();
        for word in words {
            self.words = self.words.wrapping_add(u64::from_le_bytes(*word));
        }
        self.partial[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }

    /// The sum so far.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.words.wrapping_add(u64::from_le_bytes(self.partial))
    }
}

/// What a callee answers: when it had the payload, and the sum of its bytes (its length when it read nothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `CLOCK_MONOTONIC` in ns.
    pub at: u64,
    pub sum: u64,
}

impl Seen {
    /// Length on the wire.
    pub const LEN: usize = 2 * WORD;

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..WORD].copy_from_slice(&self.at.to_le_bytes());
        bytes[WORD..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    /// From the wire; `None` for another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<WORD>();
        match (words, rest) {
            ([at, sum], []) => {
                Some(Self { at: u64::from_le_bytes(*at), sum: u64::from_le_bytes(*sum) })
            }
            _ => None,
        }
    }

    /// Takes a callee's answer and checks it.
    ///
    /// # Errors
    /// Says what the callee saw instead.
    pub fn check(bytes: &[u8], expected: u64) -> Result<Self, String> {
        let seen = Self::from_bytes(bytes)
            .ok_or_else(|| format!("a callee answered {} bytes", bytes.len()))?;
        if seen.sum == expected {
            Ok(seen)
        } else {
            Err(format!("a callee saw {} instead of {expected}", seen.sum))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_does_not_depend_on_where_the_parts_end() {
        for len in [0, 1, 7, 8, 9, 64, 1003] {
            let mut bytes = vec![0; len];
            let expected = fill(&mut bytes, 5);
            assert_eq!(Sum::of(&bytes), expected, "{len}");
            for part in [1, 3, 8, 13] {
                let mut sum = Sum::default();
                bytes.chunks(part).for_each(|part| sum.add(part));
                assert_eq!(sum.value(), expected, "{len} in parts of {part}");
            }
        }
    }

    #[test]
    fn one_wrong_byte_changes_the_sum_and_one_seed_the_payload() {
        let (mut one, mut other) = (vec![0; 100], vec![0; 100]);
        let sum = fill(&mut one, 1);
        assert_ne!(fill(&mut other, 2), sum);
        for at in [0, 50, 99] {
            one[at] ^= 1;
            assert_ne!(Sum::of(&one), sum);
            one[at] ^= 1;
        }
    }

    #[test]
    fn what_was_seen_is_checked() {
        let seen = Seen { at: 3, sum: 4 };
        assert_eq!(Seen::check(&seen.to_bytes(), 4), Ok(seen));
        assert!(Seen::check(&seen.to_bytes(), 5).is_err());
        assert!(Seen::check(b"short", 4).is_err());
    }
}
