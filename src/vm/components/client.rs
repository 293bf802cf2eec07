//! Outgoing requests where wasmtime-wasi-http differs from WASI. Runs in a worker.
//!
//! - A request without a path asks for `/`: no path is an empty one. wasmtime-wasi-http refuses its URI.
//! - In WASI 0.3 the future of a request's transmission has the error of a request that was not sent. In
//!   wasmtime-wasi-http it says that the request was sent.

use std::future::ready;
use std::pin::Pin;

use cwasi_abi::interfaces::HANDLE_FUNCTION;
use http::header::HOST;
use http::uri::PathAndQuery;
use tokio::sync::oneshot;
use wasmtime::StoreContextMut;
use wasmtime::component::{Access, Accessor, HasData, Linker, Resource};
use wasmtime_wasi::TrappableError;
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler;
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode as HandlerError, Host as _};
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::p3::bindings::http::client::{self, HostWithStore};
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::p3::{Request, Response};
use wasmtime_wasi_http::{Error, RequestOptions, WasiHttp, WasiHttpCtxView, WasiHttpView as _};

use super::state::State;

/// An empty path in a request's head.
const ROOT: &str = "/";
/// wasmtime-wasi-http's version of the interface, which serves all of WASI 0.2.
const OUTGOING_HANDLER: &str = "wasi:http/outgoing-handler@0.2.12";

/// Defines `wasi:http/outgoing-handler`, over wasmtime-wasi-http's.
pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(OUTGOING_HANDLER)?.func_wrap(HANDLE_FUNCTION, handle)
}

type HandleParams = (Resource<HostOutgoingRequest>, Option<Resource<RequestOptions>>);
type Handled = Result<Resource<HostFutureIncomingResponse>, HandlerError>;

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

/// Defines `wasi:http/client`.
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
    ) -> Result<Resource<Response>, Refused> {
        let (outcome, asked) = oneshot::channel();
        let sender = store.with_getter::<WasiHttp>(store.getter());
        let sent = async {
            let (request, transmitted) =
                store.with(|access| complete(access, request, outcome_of(asked)))?;
            let response = <WasiHttp as HostWithStore<T>>::send(&sender, request).await?;
            Ok::<_, Refused>((response, transmitted))
        };
        match sent.await {
            Ok((response, transmitted)) => {
                let _unasked = outcome.send(transmitted);
                Ok(response)
            }
            Err(error) => {
                let code = error.downcast().map_err(Refused::trap)?;
                let _unasked = outcome.send(Box::pin(ready(Err(code.clone().into()))));
                Err(code.into())
            }
        }
    }
}

/// Says whether a request was transmitted.
type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
type Refused = TrappableError<ErrorCode>;

async fn outcome_of(asked: oneshot::Receiver<Outcome>) -> Result<(), Error> {
    match asked.await {
        Ok(outcome) => outcome.await,
        // The instance ends.
        Err(_dropped) => Ok(()),
    }
}

/// The same request with a path. `outcome` becomes that of the guest's request; that of the new one is returned.
fn complete<T: 'static>(
    mut access: Access<'_, T, Clients>,
    request: Resource<Request>,
    outcome: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(Resource<Request>, Outcome), Refused> {
    let getter = access.getter();
    let mut request = access.get().table.delete(request).map_err(Refused::trap)?;
    request.path_with_query.get_or_insert_with(|| PathAndQuery::from_static(ROOT));
    let (mut request, options) = request.into_http_with_getter(&mut access, outcome, getter)?;
    // wasmtime-wasi-http adds it again.
    request.headers_mut().remove(HOST);
    let http = access.get();
    let (mut request, transmitted) = Request::from_http(http.hooks, request);
    request.options = options;
    let request = http.table.push(request).map_err(Refused::trap)?;
    Ok((request, Box::pin(transmitted)))
}
