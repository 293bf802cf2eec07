//! The data of one component in wasmtime's store. Runs in a worker.

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::lent_host::LentHost;
use super::requests::NoRequests;
use super::rules::Rules;

pub(super) struct State {
    pub(super) host: LentHost,
    pub(super) wasi: WasiCtx,
    pub(super) http: WasiHttpCtx,
    pub(super) requests: NoRequests,
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

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.requests }
    }
}

/// Limits each linear memory to `cwasi.memory`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLimit(usize);

impl MemoryLimit {
    /// At most `bytes`; `None` = as many as there are.
    pub(super) fn new(bytes: Option<u64>) -> Self {
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
