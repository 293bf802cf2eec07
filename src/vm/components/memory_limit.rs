//! The bound of linear memories, for components and for core modules. Runs in a worker.

use wasmtime::ResourceLimiter;

/// Limits each linear memory to `cwasi.memory`.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimit(usize);

impl MemoryLimit {
    /// At most `bytes`; `None` = as many as there are.
    #[must_use]
    pub fn new(bytes: Option<u64>) -> Self {
        Self(bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX))
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= self.0)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        _desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(true)
    }
}
