//! Unread responses of a guest, by handle. Runs in a worker.

use std::fmt;

use rustc_hash::FxHashMap;

use crate::Response;

/// Most responses that a guest may leave unread.
pub const RESPONSES_MAX: usize = 64;

/// Unread responses. Handles start at 1 and are not used again soon, so that a stale one is noticed.
#[derive(Default)]
pub struct ResponseTable {
    unread: FxHashMap<u32, Box<dyn Response>>,
    last: u32,
}

impl ResponseTable {
    /// True when one more response cannot be kept.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.unread.len() >= RESPONSES_MAX
    }

    /// Keeps a response; `None` when the table is full.
    pub fn insert(&mut self, response: Box<dyn Response>) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        // Terminates: at most RESPONSES_MAX of the 2^32 - 1 handles are taken.
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.unread.contains_key(&self.last) {
                break;
            }
        }
        self.unread.insert(self.last, response);
        Some(self.last)
    }

    /// The response behind a handle.
    #[must_use]
    pub fn get(&self, handle: u32) -> Option<&dyn Response> {
        self.unread.get(&handle).map(AsRef::as_ref)
    }

    /// Frees a handle.
    pub fn remove(&mut self, handle: u32) {
        self.unread.remove(&handle);
    }

    /// Frees every handle.
    pub fn clear(&mut self) {
        self.unread.clear();
    }
}

impl fmt::Debug for ResponseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.unread.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_modes::Payload;

    fn response(bytes: Vec<u8>) -> Box<dyn Response> {
        Box::new(Payload::Inline(bytes))
    }

    #[test]
    fn the_documented_bound_is_this_one() {
        let document = include_str!("../../docs/abi.md");
        assert!(document.contains(&format!("may leave {RESPONSES_MAX} unread")));
    }

    #[test]
    fn bounded_and_never_zero() {
        let mut table = ResponseTable { last: u32::MAX - 1, ..ResponseTable::default() };
        assert_eq!(table.insert(response(vec![1])), Some(u32::MAX));
        assert_eq!(table.insert(response(vec![2])), Some(1));
        table.last = 0;
        assert_eq!(table.insert(response(vec![3])), Some(2), "1 is taken");
        while table.insert(response(vec![])).is_some() {}
        assert_eq!(table.unread.len(), RESPONSES_MAX);
        table.remove(1);
        assert!(table.get(1).is_none() && !table.is_full());
    }
}
