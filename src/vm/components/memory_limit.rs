//! The budget of memory of an instance (`cwasi.memory`), for components and for core modules. Runs in a worker.
//!
//! An instance may have several stores: those of the functions that it embeds. All their linear memories and tables
//! take from one budget, so that neither many memories nor a table evade the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::ResourceLimiter;

/// Bytes of a table's element: a pointer. References of the garbage collector have fewer.
const ELEMENT_LEN: usize = size_of::<usize>();

/// What an instance and all functions that it embeds may still take; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<AtomicUsize>);

impl MemoryBudget {
    /// Of `bytes`; `None` = as many as there are.
    #[must_use]
    pub fn new(bytes: Option<u64>) -> Self {
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// False for as many as there are.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.left() != usize::MAX
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// One store's part of a budget. Dropped with the store, it gives back what the store took.
#[derive(Debug)]
pub struct MemoryLimit {
    budget: MemoryBudget,
    taken: usize,
}

impl MemoryLimit {
    #[must_use]
    pub const fn new(budget: MemoryBudget) -> Self {
        Self { budget, taken: 0 }
    }

    #[must_use]
    pub const fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Takes what a growth needs. A growth beyond the own maximum of a memory or a table fails anyway, so it takes
    /// nothing. One that the system refuses afterwards keeps what it took.
    fn grow(
        &mut self,
        (current, desired): (usize, usize),
        maximum: Option<usize>,
        unit: usize,
    ) -> bool {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return false;
        }
        let bytes = desired.saturating_sub(current).saturating_mul(unit);
        let has_room = self.budget.take(bytes);
        if has_room {
            self.taken += bytes;
        }
        has_room
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow((current, desired), maximum, 1))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow((current, desired), maximum, ELEMENT_LEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_share_a_budget_and_give_it_back() {
        let budget = MemoryBudget::new(Some(100));
        let mut first = MemoryLimit::new(budget.clone());
        let mut second = MemoryLimit::new(budget.clone());
        assert!(first.memory_growing(0, 40, None).unwrap());
        assert!(second.memory_growing(10, 50, None).unwrap());
        assert!(!first.memory_growing(40, 61, None).unwrap());
        // Elements of a table have eight bytes.
        assert!(!second.table_growing(0, 3, None).unwrap());
        assert!(second.table_growing(0, 2, None).unwrap());
        assert_eq!(budget.left(), 4);
        drop(second);
        assert_eq!(budget.left(), 60);
        // What would fail anyway takes nothing.
        assert!(!first.memory_growing(40, 50, Some(45)).unwrap());
        assert!(!first.table_growing(0, usize::MAX, None).unwrap());
        assert_eq!(budget.left(), 60);
        drop(first);
        assert_eq!(budget.left(), 100);
        assert!(
            MemoryLimit::new(MemoryBudget::new(None)).memory_growing(0, 1 << 40, None).unwrap()
        );
    }
}
