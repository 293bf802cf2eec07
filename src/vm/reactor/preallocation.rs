//! Allocates the block of the next payload before its request arrives, as long as earlier payloads were. Runs in a
//! worker.
//!
//! A guest sees a block that may be longer than its payload. As always, the payload is in the block of the last
//! allocation.

use cwasi_abi::{INLINE_MAX, REGION_PAGE};

/// Longest block in bytes: beside a longer payload, the cost of the allocation does not matter.
const LEN_MAX: u64 = 4 << 20;
/// The block takes at most this fraction of the guest's memory: the handler of a smaller payload cannot use it.
const PART_OF_MEMORY: u64 = 16;
/// Lengths are multiples of this, and of a quarter of the next power of two: payloads that grow slowly, each of which
/// needs another instance, do so a few times.
const STEP_MIN: u64 = 64;

/// The length of the next block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preallocation {
    /// In bytes; 0 = none.
    len: u64,
    max: u64,
}

impl Preallocation {
    /// For a guest whose memory has at most `memory_max` bytes (`None`: Wasm's own maximum).
    #[must_use]
    pub fn within(memory_max: Option<u64>) -> Self {
        let part = memory_max.map_or(LEN_MAX, |max| max / PART_OF_MEMORY);
        Self { len: 0, max: part.min(LEN_MAX) }
    }

    /// In bytes; 0 = none.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// True when no block is allocated ahead.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Records a payload that needed a block of `needed` bytes. If that is too long, nothing is preallocated.
    pub fn learn(&mut self, needed: u64) {
        if needed <= self.len {
            return;
        }
        let step = (needed.next_power_of_two() / 4).max(STEP_MIN);
        self.len = needed.next_multiple_of(step);
        if is_paged(needed) {
            self.len = self.len.next_multiple_of(u64::from(REGION_PAGE));
        }
        if self.len > self.max {
            *self = Self::default();
        }
    }
}

/// True for lengths that are mapped at whole pages.
pub(super) const fn is_paged(len: u64) -> bool {
    len > INLINE_MAX as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn grows_with_payloads_and_ends_with_one_that_is_too_long() {
        let mut ahead = Preallocation::within(None);
        assert!(ahead.is_empty());
        let steps = [(1, 64), (64, 64), (10, 64), (100, 128), (60_000, 65_536), (2 << 20, 2 << 20)];
        for (needed, len) in steps {
            ahead.learn(needed);
            assert_eq!(ahead.len(), len, "{needed}");
        }
        ahead.learn(LEN_MAX + 1);
        assert!(ahead.is_empty());
        ahead.learn(1);
        assert!(ahead.is_empty(), "such payloads come again");
        let mut ahead = Preallocation::within(Some(1 << 20));
        ahead.learn(65_537);
        assert!(ahead.is_empty(), "more than a sixteenth");
    }

    proptest! {
        #[test]
        fn needed_lengths_fit(needed in prop::collection::vec(0..2 * LEN_MAX, 1..40)) {
            let mut ahead = Preallocation::within(None);
            let (mut longest, mut changes) = (0, 0);
            for needed in needed {
                let before = ahead.len();
                ahead.learn(needed);
                longest = longest.max(needed);
                changes += usize::from(ahead.len() != before);
                prop_assert!(ahead.is_empty() || ahead.len() >= longest);
                prop_assert!(ahead.len() <= LEN_MAX);
                prop_assert!(!is_paged(ahead.len()) || ahead.len().is_multiple_of(4096));
            }
            prop_assert!(changes <= 80);
        }
    }
}
