//! The last bytes that a guest wrote to stderr. Runs in a worker.

use std::io::IoSlice;

/// Bytes that are kept.
pub const TAIL_MAX: usize = 1024;

/// The last bytes, in order.
#[derive(Debug, Default)]
pub(crate) struct StderrTail(Vec<u8>);

impl StderrTail {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds the first `written` bytes of `parts`.
    pub(crate) fn add(&mut self, parts: &[IoSlice<'_>], mut written: usize) {
        for part in parts {
            let part = &part[..part.len().min(written)];
            written -= part.len();
            let part = &part[part.len().saturating_sub(TAIL_MAX)..];
            let excess = (self.0.len() + part.len()).saturating_sub(TAIL_MAX);
            self.0.drain(..excess);
            self.0.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_end_of_whatever_was_written_is_kept(
            writes in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 0..4),
                0..6,
            ),
            cut in 0..2000_usize,
        ) {
            let mut tail = StderrTail::default();
            let mut all: Vec<u8> = Vec::new();
            for parts in &writes {
                let whole = parts.concat();
                let written = whole.len().saturating_sub(cut);
                all.extend(&whole[..written]);
                let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
                tail.add(&parts, written);
            }
            prop_assert_eq!(tail.bytes(), &all[all.len().saturating_sub(TAIL_MAX)..]);
        }
    }
}
