//! The data of one component in wasmtime's store. Runs in a worker.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::callees::Callees;
use super::lent_host::LentHost;
use super::memory_limit::MemoryLimit;
use super::requests::Requests;
use super::rules::Rules;

pub(super) struct State {
    pub(super) host: LentHost,
    pub(super) callees: Callees,
    pub(super) wasi: WasiCtx,
    pub(super) http: WasiHttpCtx,
    pub(super) requests: Requests,
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
