//! The budget of memory of an instance (`cwasi.memory`), for components and for core modules. Runs in a worker.
//!
//! An instance may have several stores: those of the functions that it embeds. All their linear memories and tables
//! take from one budget, so that neither many memories nor a table evade the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::ResourceLimiter;

/// Bytes of a table's element: a pointer. References of the garbage collector have fewer.
const ELEMENT_LEN: usize = size_of::<usize>();

/// Bytes of tables that are free: a module has one for the functions that it calls indirectly, and a limit of as many
/// pages as its memory has leaves room for it.
const TABLES_FREE: usize = 64 << 10;

/// What an instance and all functions that it embeds may still take; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    left: AtomicUsize,
    /// Of [`TABLES_FREE`].
    tables: AtomicUsize,
}

impl MemoryBudget {
    /// Of `bytes`; `None` = as many as there are.
    #[must_use]
    pub fn new(bytes: Option<u64>) -> Self {
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        Self(Arc::new(Budget { left: AtomicUsize::new(bytes), tables: TABLES_FREE.into() }))
    }

    /// False for as many as there are.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.left() != usize::MAX
    }

    /// Bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// One store's part of a budget. Dropped with the store, it gives back what the store took.
#[derive(Debug)]
pub struct MemoryLimit {
    budget: MemoryBudget,
    taken: usize,
    /// Free bytes of tables.
    tables: usize,
}

impl MemoryLimit {
    #[must_use]
    pub const fn new(budget: MemoryBudget) -> Self {
        Self { budget, taken: 0, tables: 0 }
    }

    #[must_use]
    pub const fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Takes what a growth needs, of which `free` bytes are free. One that the system refuses afterwards keeps what it
    /// took.
    fn take(&mut self, bytes: usize, free: usize) -> bool {
        let has_room = self.budget.take(bytes - free);
        if has_room {
            self.taken += bytes - free;
            self.tables += free;
            self.budget.0.tables.fetch_sub(free, Ordering::Relaxed);
        }
        has_room
    }
}

/// Bytes of a growth; `None` if it is beyond the own maximum of a memory or a table: it fails anyway, and takes nothing.
fn growth(current: usize, desired: usize, maximum: Option<usize>, unit: usize) -> Option<usize> {
    let fits = maximum.is_none_or(|maximum| desired <= maximum);
    fits.then(|| desired.saturating_sub(current).saturating_mul(unit))
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.budget.0.left.fetch_add(self.taken, Ordering::Relaxed);
        self.budget.0.tables.fetch_add(self.tables, Ordering::Relaxed);
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = growth(current, desired, maximum, 1);
        Ok(bytes.is_some_and(|bytes| self.take(bytes, 0)))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = growth(current, desired, maximum, ELEMENT_LEN);
        let free = self.budget.0.tables.load(Ordering::Relaxed);
        Ok(bytes.is_some_and(|bytes| self.take(bytes, free.min(bytes))))
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
        // Elements of a table have eight bytes, and the first ones are free.
        let free = TABLES_FREE / ELEMENT_LEN;
        assert!(first.table_growing(0, free, None).unwrap());
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
        assert_eq!((budget.left(), budget.0.tables.load(Ordering::Relaxed)), (100, TABLES_FREE));
        assert!(
            MemoryLimit::new(MemoryBudget::new(None)).memory_growing(0, 1 << 40, None).unwrap()
        );
    }
}
