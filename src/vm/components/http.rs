//! `wasi:http/incoming-handler`: a request of the gateway, or a call by name, whose payload is the body. Runs in a
//! worker.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::Bytes;
use cwasi_abi::response_head::{is_length_for_head, is_reserved};
use cwasi_abi::{Errno, METADATA_ENTRIES_MAX, METADATA_OVERHEAD, PAYLOAD_MAX, context_key as keys};
use cwasi_host_functions::Host;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Body;
use tokio::sync::oneshot;
use wasmtime::Store;
use wasmtime::component::{ComponentExportIndex, Instance, Resource};
use wasmtime_wasi_http::p2::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::p2::types::{HostIncomingRequest, HostResponseOutparam};
use wasmtime_wasi_http::{Error, WasiHttpView as _};

use super::state::State;

/// Method of a call by name.
const METHOD: &str = "POST";
/// A request's host, if it has no header that says it.
const AUTHORITY: &str = "localhost";
/// Key of a response's status for `context_set`.
const STATUS: &str = keys::HTTP_STATUS;
/// Bytes of a header that count besides its name and value.
const HEADER_OVERHEAD: usize = keys::HTTP_HEADER.len() + METADATA_OVERHEAD;

/// What the handler has answered: the response with its whole body, or why there is none.
pub(super) type Answer = Result<Response<Bytes>, String>;

/// The request as the gateway got it; a call by name is a POST to `/`.
///
/// # Errors
/// When the head is invalid.
pub(super) fn request(host: &Host, body: Vec<u8>) -> Result<Request<Full<Bytes>>, http::Error> {
    let value = |key: &str| host.text(key).unwrap_or_default();
    let or = |value: String, other: &str| if value.is_empty() { other.to_owned() } else { value };
    let query = value(keys::HTTP_QUERY);
    let mark = if query.is_empty() { "" } else { "?" };
    let path = format!("{}{mark}{query}", or(value(keys::HTTP_PATH), "/"));
    let authority = or(value(&format!("{}host", keys::HTTP_HEADER)), AUTHORITY);
    let uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
    let method = or(value(keys::HTTP_METHOD), METHOD);
    let mut request = Request::builder().method(method.as_str()).uri(uri);
    // The host is in the URI. Where components may not see it, taking it away would change the others' order.
    for (name, value) in host.context().headers().filter(|(name, _)| *name != "host") {
        request = request.header(name, value);
    }
    request.body(Full::new(body.into()))
}

/// Sets the head of the response for a caller that came by HTTP, and returns the body. Headers of the connection and the
/// framing, which belong to the server in front, are left out. Only the response to `HEAD` keeps its length.
///
/// # Errors
/// What of the head cannot be delivered.
pub(super) fn answered(host: &mut Host, response: Response<Bytes>) -> Result<Vec<u8>, String> {
    let (head, body) = response.into_parts();
    let status = head.status.as_str();
    host.set_metadata(STATUS, status.as_bytes())
        .map_err(|_refused| format!("the response's status {status} is not between 200 and 599"))?;
    for (name, value) in &head.headers {
        let key = format!("{}{name}", keys::HTTP_HEADER);
        let is_length = host.answers_head() && is_length_for_head(&key, value.as_bytes());
        if is_reserved(name.as_str()) && !is_length {
            continue;
        }
        host.add_metadata(&key, value.as_bytes()).map_err(|errno| {
            let why = match errno {
                Errno::PayloadTooLarge => format!(
                    "exceeds what a head may have: {} bytes with {HEADER_OVERHEAD} for each header, and \
                     {METADATA_ENTRIES_MAX} headers (cwasi.http.max-head)",
                    host.max_head()
                ),
                _ => "has a name or value that HTTP does not allow".to_owned(),
            };
            format!("the response's header `{name}` {why}")
        })?;
    }
    Ok(body.into())
}

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
    type Params = (Resource<HostIncomingRequest>, Resource<HostResponseOutparam>);
    let (sender, receiver) = oneshot::channel();
    let is_set = Arc::new(AtomicBool::new(false));
    let was_set = Arc::clone(&is_set);
    let is_head = request.method() == Method::HEAD;
    let request = request.map(|body| body.map_err(|never| -> Error { match never {} }));
    let request = store.data_mut().http().new_incoming_request(Scheme::Http, request)?;
    let out = store.data_mut().http().new_response_outparam_from_callback(move |response| {
        is_set.store(true, Ordering::Relaxed);
        let _receiver_waits = sender.send(response);
    })?;
    let function = instance.get_typed_func::<Params, ()>(&mut *store, entry)?;
    let mut run = pin!(function.call_async(&mut *store, (request, out)));
    // Reads the body while the handler writes it.
    let mut answer = pin!(tokio::task::unconstrained(answer(receiver, is_head)));
    let mut answered = None;
    std::future::poll_fn(|context| {
        let ended = run.as_mut().poll(context);
        if answered.is_none()
            && let Poll::Ready(answer) = answer.as_mut().poll(context)
        {
            answered = Some(answer);
        }
        // Nothing comes any more once the handler has returned.
        ended.map_ok(|()| answered.take().unwrap_or_else(|| Err(unfinished(&was_set))))
    })
    .await
}

fn unfinished(was_set: &AtomicBool) -> String {
    let what =
        if was_set.load(Ordering::Relaxed) { "finishing its response" } else { "a response" };
    format!("the handler returned without {what}")
}

async fn answer(
    receiver: oneshot::Receiver<Result<Response<HyperOutgoingBody>, ErrorCode>>,
    is_head: bool,
) -> Answer {
    let response =
        receiver.await.map_err(|_dropped| "the handler returned without a response".to_owned())?;
    let response = response.map_err(|code| format!("the handler failed: {code:?}"))?;
    let (head, body) = response.into_parts();
    Ok(Response::from_parts(head, whole(body, is_head).await?))
}

/// The body of a response while the handler writes it. That of the response to `HEAD` is not sent, and shorter than the
/// head says.
///
/// # Errors
/// The handler did not write the body that the head announces.
pub(super) async fn whole<B>(body: B, is_head: bool) -> Result<Bytes, String>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let limit = usize::try_from(PAYLOAD_MAX).unwrap_or(usize::MAX);
    let body = pin!(body);
    match Limited::new(body, limit).collect().await {
        Ok(_unsent) if is_head => Ok(Bytes::new()),
        Ok(body) => Ok(body.to_bytes()),
        Err(_shorter) if is_head => Ok(Bytes::new()),
        Err(error) => Err(format!("the response's body is broken: {error}")),
    }
}
