//! `wasi:sockets/ip-name-lookup` by our own resolver and rules. Runs in a worker.
//!
//! wasmtime-wasi's would start a thread, ask glibc, and have no rule for single names.

use std::net::IpAddr;

use cwasi_vm::sockets::WasiErrno;
use cwasi_vm::sockets::dns::RecordKind;
use wasmtime::component::{Accessor, HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{
    self, Host, HostResolveAddressStream, ResolveAddressStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, Pollable, SocketError, SocketResult, subscribe};
use wasmtime_wasi::p3::bindings::sockets::{ip_name_lookup as async_look_up, types as async_types};

use super::rules::Rules;
use super::state::State;

/// Defines `wasi:sockets/ip-name-lookup` of WASI 0.2, over wasmtime-wasi's.
pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    ip_name_lookup::add_to_linker::<State, LookUps>(linker, |state| LookUp {
        rules: state.rules.as_ref(),
        table: &mut state.table,
    })
}

/// Defines that of WASI 0.3, which is asynchronous. It waits all the same, as our resolver does.
pub(super) fn define_async(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    async_look_up::add_to_linker::<State, LookUps>(linker, |state| LookUp {
        rules: state.rules.as_ref(),
        table: &mut state.table,
    })
}

struct LookUps;

impl HasData for LookUps {
    type Data<'a> = LookUp<'a>;
}

struct LookUp<'a> {
    rules: Option<&'a Rules>,
    table: &'a mut ResourceTable,
}

/// The answer, behind a guest's handle of a `resolve-address-stream`.
struct Addresses(std::vec::IntoIter<IpAddr>);

#[wasmtime_wasi::async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {}
}

/// The same handle for the type that the table has.
fn addresses(stream: &Resource<ResolveAddressStream>) -> Resource<Addresses> {
    Resource::new_borrow(stream.rep())
}

impl LookUp<'_> {
    fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, WasiErrno> {
        let rules = self.rules.ok_or(WasiErrno::ACCES)?;
        let kinds = [RecordKind::A, RecordKind::Aaaa];
        match name.parse::<IpAddr>() {
            Ok(address) => Ok(vec![address]),
            Err(_name) => rules.sockets().look_up(name, &kinds),
        }
    }
}

impl async_look_up::Host for LookUp<'_> {}

impl<T> async_look_up::HostWithStore<T> for LookUps {
    async fn resolve_addresses(
        store: &Accessor<T, Self>,
        name: String,
    ) -> wasmtime::Result<Result<Vec<async_types::IpAddress>, async_look_up::ErrorCode>> {
        use async_look_up::ErrorCode;
        let found = store.with(|mut view| view.get().addresses(&name));
        Ok(match found {
            Ok(addresses) => Ok(addresses.into_iter().map(Into::into).collect()),
            Err(WasiErrno::ACCES) => Err(ErrorCode::AccessDenied),
            Err(WasiErrno::AI_AGAIN) => Err(ErrorCode::TemporaryResolverFailure),
            Err(WasiErrno::AI_FAIL) => Err(ErrorCode::PermanentResolverFailure),
            Err(_) => Err(ErrorCode::NameUnresolvable),
        })
    }
}

impl network::Host for LookUp<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        _error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(None)
    }
}

impl network::HostNetwork for LookUp<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        self.table.delete(network)?;
        Ok(())
    }
}

impl Host for LookUp<'_> {
    fn resolve_addresses(
        &mut self,
        _network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        let found = self.addresses(&name).map_err(error_code)?;
        let answer = self.table.push(Addresses(found.into_iter()))?;
        Ok(Resource::new_own(answer.rep()))
    }
}

impl HostResolveAddressStream for LookUp<'_> {
    fn resolve_next_address(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> SocketResult<Option<IpAddress>> {
        Ok(self.table.get_mut(&addresses(&stream))?.0.next().map(IpAddress::from))
    }

    fn subscribe(
        &mut self,
        stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        subscribe(self.table, addresses(&stream))
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.table.delete(Resource::<Addresses>::new_own(stream.rep()))?;
        Ok(())
    }
}

fn error_code(errno: WasiErrno) -> ErrorCode {
    match errno {
        WasiErrno::ACCES => ErrorCode::AccessDenied,
        WasiErrno::AI_AGAIN => ErrorCode::TemporaryResolverFailure,
        WasiErrno::AI_FAIL => ErrorCode::PermanentResolverFailure,
        _ => ErrorCode::NameUnresolvable,
    }
}
