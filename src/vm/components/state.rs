//! The data of one component in wasmtime's store. Runs in a worker.

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::lent_host::LentHost;
use super::network::Rules;

pub(super) struct State {
    pub(super) host: LentHost,
    pub(super) wasi: WasiCtx,
    /// The guest's resources: files, streams, sockets, payloads, calls.
    pub(super) table: ResourceTable,
    pub(super) limit: MemoryLimit,
    /// The rules of its sockets; `None` = no sockets.
    pub(super) rules: Option<Rules>,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Limits each linear memory to `cwasi.memory`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimit(pub(super) usize);

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
