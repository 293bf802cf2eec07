//! Sockets of components: only to destinations of `cwasi.network`, and look-ups by our own resolver. Runs in a worker.
//!
//! wasmtime-wasi asks for each address before it is used. Its own look-up of names would start a thread and ask glibc,
//! so `wasi:sockets/ip-name-lookup` is ours.
#![expect(unsafe_code, reason = "wasmtime-wasi wants rules that any thread may ask")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cwasi_vm::sockets::dns::RecordKind;
use cwasi_vm::sockets::{Sockets, WasiErrno};
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{
    self, Host, HostResolveAddressStream, ResolveAddressStream,
};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, Pollable, SocketError, SocketResult, subscribe};
use wasmtime_wasi::sockets::SocketAddrUse;

use super::state::State;

/// The rules of one component's sockets. Clones share what was looked up.
#[derive(Clone, Debug)]
pub(super) struct Rules(Arc<OneThread>);

#[derive(Debug)]
struct OneThread(Sockets);

// SAFETY:
// - a worker has one thread, and its runtime runs every future on it: no other one ever asks.
unsafe impl Send for OneThread {}
// SAFETY:
// - as above.
unsafe impl Sync for OneThread {}

impl Rules {
    pub(super) fn new(sockets: Sockets) -> Self {
        Self(Arc::new(OneThread(sockets)))
    }

    /// Has wasmtime-wasi ask these rules. Without them it refuses every address.
    pub(super) fn apply(&self, wasi: &mut WasiCtxBuilder) {
        let rules = self.clone();
        wasi.socket_addr_check(move |address, purpose| {
            let allowed = rules.allows(address, purpose);
            Box::pin(std::future::ready(allowed))
        });
    }

    fn allows(&self, address: SocketAddr, purpose: SocketAddrUse) -> bool {
        let Self(rules) = self;
        let decided = match purpose {
            SocketAddrUse::TcpConnect | SocketAddrUse::UdpSend => rules.0.allows(address),
            // From an address to which it may send.
            SocketAddrUse::UdpReceive => rules.0.allows(address),
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => rules.0.allows_bind(address),
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => rules.0.listen(),
        };
        decided.is_ok()
    }
}

/// Defines `wasi:sockets/ip-name-lookup`, over wasmtime-wasi's.
pub(super) fn define_look_up(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    ip_name_lookup::add_to_linker::<State, LookUps>(linker, |state| LookUp {
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
        let rules = self.rules.ok_or(ErrorCode::AccessDenied)?;
        let kinds = [RecordKind::A, RecordKind::Aaaa];
        let found = match name.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_name) => rules.0.0.look_up(&name, &kinds).map_err(error_code)?,
        };
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
