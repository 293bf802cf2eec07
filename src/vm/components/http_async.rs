//! `wasi:http/handler` of WASI 0.3: a request of the gateway, or a call by name. Runs in a worker.
//!
//! The handler returns a response whose body its tasks write afterwards. They end with the body.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use wasmtime::Store;
use wasmtime::component::{Accessor, ComponentExportIndex, Instance, Resource};
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::p3::{Request as GuestRequest, Response as GuestResponse};
use wasmtime_wasi_http::{Error, WasiHttpView as _};

use super::http::{Answer, whole};
use super::state::State;

/// Runs the handler and takes its response.
///
/// # Errors
/// The handler's trap.
pub(super) async fn handle(
    store: &mut Store<State>,
    instance: Instance,
    entry: &ComponentExportIndex,
    request: Request<Full<Bytes>>,
) -> wasmtime::Result<Answer> {
    type Params = (Resource<GuestRequest>,);
    type Returned = (Result<Resource<GuestResponse>, ErrorCode>,);
    let function = instance.get_typed_func::<Params, Returned>(&mut *store, entry)?;
    let is_head = request.method() == Method::HEAD;
    let request = request.map(|body| body.map_err(|never| -> Error { match never {} }));
    // Nobody waits for the handler to say that it has read the request.
    let (request, _read) = GuestRequest::from_http(store.data_mut().http().hooks, request);
    let request = store.data_mut().table.push(request)?;
    store
        .run_concurrent(async |accessor| {
            match function.call_concurrent(accessor, (request,)).await? {
                (Ok(response),) => taken(accessor, response, is_head).await,
                (Err(code),) => Ok(Err(format!("the handler failed: {code:?}"))),
            }
        })
        .await?
}

/// Reads the body of a response while the handler's tasks write it.
async fn taken(
    accessor: &Accessor<State>,
    response: Resource<GuestResponse>,
    is_head: bool,
) -> wasmtime::Result<Answer> {
    let response = accessor.with(|mut access| {
        let response = access.data_mut().table.delete(response)?;
        response.into_http(access, async { Ok(()) })
    })?;
    let (head, body) = response.into_parts();
    let body = whole(body, is_head).await;
    Ok(body.map(|body| Response::from_parts(head, body)))
}
