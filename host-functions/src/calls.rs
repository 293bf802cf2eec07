//! Started calls that the guest has not waited for, by handle. Runs in a worker.

use std::fmt;

use cwasi_abi::CALLS_IN_FLIGHT_MAX;
use rustc_hash::FxHashMap;

use crate::CallOutcome;
use cwasi_modes::CallTicket;

/// A call in flight.
pub enum InFlight {
    Pending(CallTicket),
    /// It ended when it was started.
    Ended(CallOutcome),
}

/// Calls in flight. Handles start at 1 and are reused late, so that a stale one is noticed.
#[derive(Default)]
pub struct CallTable {
    calls: FxHashMap<u32, InFlight>,
    last: u32,
}

impl CallTable {
    /// True if there is no room for another call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.calls.len() >= CALLS_IN_FLIGHT_MAX
    }

    /// Adds a call; the table is not full.
    pub fn insert(&mut self, call: InFlight) -> u32 {
        // Terminates: at most CALLS_IN_FLIGHT_MAX of the 2^32 - 1 handles are taken.
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.calls.contains_key(&self.last) {
                break;
            }
        }
        self.calls.insert(self.last, call);
        self.last
    }

    /// The call of a handle.
    #[must_use]
    pub fn get(&self, handle: u32) -> Option<&InFlight> {
        self.calls.get(&handle)
    }

    /// Frees a handle.
    pub fn remove(&mut self, handle: u32) -> Option<InFlight> {
        self.calls.remove(&handle)
    }

    /// Frees every handle.
    pub fn clear(&mut self) {
        self.calls.clear();
    }
}

impl fmt::Debug for CallTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.calls.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_never_zero() {
        let pending = || InFlight::Pending(CallTicket(7));
        let mut table = CallTable { last: u32::MAX - 1, ..CallTable::default() };
        assert_eq!(table.insert(pending()), u32::MAX);
        assert_eq!(table.insert(pending()), 1);
        table.last = 0;
        assert_eq!(table.insert(pending()), 2, "1 is taken");
        while !table.is_full() {
            table.insert(pending());
        }
        assert_eq!(table.calls.len(), CALLS_IN_FLIGHT_MAX);
        assert!(table.remove(1).is_some() && table.get(1).is_none() && !table.is_full());
        table.clear();
        assert!(table.get(2).is_none());
    }
}
