//! Which addresses a component's sockets may use: destinations of `cwasi.network`. Runs in a worker.
//!
//! wasmtime-wasi asks for each address before it is used.

use std::net::SocketAddr;
use std::sync::Arc;

use cwasi_vm::sockets::Sockets;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;

use super::one_thread::OneThread;

/// The rules of one component's sockets. Clones share what was looked up.
#[derive(Clone, Debug)]
pub(super) struct Rules(Arc<OneThread<Sockets>>);

impl Rules {
    pub(super) fn new(sockets: Sockets) -> Self {
        Self(Arc::new(OneThread(sockets)))
    }

    /// Has wasmtime-wasi ask these rules. Without them it makes no sockets.
    pub(super) fn apply(&self, wasi: &mut WasiCtxBuilder) {
        let rules = self.clone();
        wasi.allow_tcp(true).allow_udp(true).socket_addr_check(move |address, purpose| {
            let allowed = rules.allows(address, purpose);
            Box::pin(std::future::ready(allowed))
        });
    }

    /// The rules, for look-ups of names.
    pub(super) fn sockets(&self) -> &Sockets {
        &self.0.0
    }

    fn allows(&self, address: SocketAddr, purpose: SocketAddrUse) -> bool {
        let rules = self.sockets();
        let decided = match purpose {
            SocketAddrUse::TcpConnect | SocketAddrUse::UdpSend => rules.allows(address),
            // From an address to which it may send.
            SocketAddrUse::UdpReceive => rules.allows(address),
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => rules.allows_bind(address),
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => rules.listen(),
        };
        decided.is_ok()
    }
}
