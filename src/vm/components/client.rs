//! `wasi:http/outgoing-handler` and `wasi:http/client`: a request without a path asks for `/`. Runs in a worker.
//!
//! In WASI no path means an empty one. wasmtime-wasi-http sends such a request nowhere, because its URI is invalid.

use cwasi_abi::interfaces::HANDLE_FUNCTION;
use http::uri::PathAndQuery;
use wasmtime::StoreContextMut;
use wasmtime::component::{Accessor, HasData, Linker, Resource};
use wasmtime_wasi::TrappableError;
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode as RefusedRequest, Host as _};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::p3::bindings::http::client::{self, HostWithStore};
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::p3::{Request, Response};
use wasmtime_wasi_http::{RequestOptions, WasiHttp, WasiHttpCtxView, WasiHttpView as _};

use super::state::State;

/// An empty path in a request's head.
const ROOT: &str = "/";
/// wasmtime-wasi-http's version of the interface, which serves all of WASI 0.2.
const OUTGOING_HANDLER: &str = "wasi:http/outgoing-handler@0.2.12";

/// Defines the interface of WASI 0.2, over wasmtime-wasi-http's.
pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(OUTGOING_HANDLER)?.func_wrap(HANDLE_FUNCTION, handle)
}

type HandleParams = (Resource<HostOutgoingRequest>, Option<Resource<RequestOptions>>);
type Handled = Result<Resource<HostFutureIncomingResponse>, RefusedRequest>;

fn handle(
    mut store: StoreContextMut<'_, State>,
    (request, options): HandleParams,
) -> wasmtime::Result<(Handled,)> {
    let mut http = store.data_mut().http();
    // wasmtime-wasi-http refuses a handle that is unknown.
    if let Ok(request) = http.table.get_mut(&request) {
        request.path_with_query.get_or_insert_with(|| ROOT.to_owned());
    }
    match outgoing_handler::Host::handle(&mut http, request, options) {
        Ok(response) => Ok((Ok(response),)),
        Err(error) => Ok((Err(http.convert_error_code(error)?),)),
    }
}

/// Defines that of WASI 0.3.
pub(super) fn define_async(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    client::add_to_linker::<State, Clients>(linker, State::http)
}

struct Clients;

impl HasData for Clients {
    type Data<'a> = WasiHttpCtxView<'a>;
}

impl<T> HostWithStore<T> for Clients {
    async fn send(
        store: &Accessor<T, Self>,
        request: Resource<Request>,
    ) -> Result<Resource<Response>, TrappableError<ErrorCode>> {
        store.with(|mut access| {
            if let Ok(request) = access.get().table.get_mut(&request) {
                let path = &mut request.path_with_query;
                path.get_or_insert_with(|| PathAndQuery::from_static(ROOT));
            }
        });
        let sender = store.with_getter::<WasiHttp>(store.getter());
        <WasiHttp as HostWithStore<T>>::send(&sender, request).await
    }
}
