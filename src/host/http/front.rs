//! One HTTP request to one function: the body in, the call, the response out.

use std::sync::Arc;

use cwasi_abi::Errno;
use hyper::body::{Body, Bytes};
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::connections::ConnectionState;
use super::request_body::{BodyError, BodyLimits, BodyMemory, ReceivedBody, receive};
use super::response_body::ResponseBody;
use super::server::TOO_MANY_CLIENTS;
use super::status::{failed, sentence, status_of_call};
use super::{HttpLimits, metadata};
use crate::caller::{HostAnswer, HostCall, HostCaller};
use crate::network::EVENT_MAX;
use cwasi_modes::{CallError, Payload};
use cwasi_sys::random::bytes16;
use cwasi_sys::segment::SegmentError;
use cwasi_wire::envelope::Metadata;
use cwasi_wire::ids::CallId;
use cwasi_wire::trace_headers::TraceHeaders;

/// Headers with the trace context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Header that says whether the trace of a client's `traceparent` is recorded.
pub const TRACE: HeaderName = HeaderName::from_static("cwasi-trace");
/// Header with the id of an invocation, as OpenFaaS names it.
pub const CALL_ID: HeaderName = HeaderName::from_static("x-call-id");

/// What a body is when its function has not said it.
const OCTETS: &str = "application/octet-stream";

/// A call whose request has arrived, and which is made later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeferredCall {
    /// A function as callers name it.
    pub target: String,
    /// W3C trace context, empty if there is none.
    pub traceparent: String,
    /// What goes with it, empty without.
    #[serde(default)]
    pub tracestate: String,
    /// Keys and values that the function reads by `context_get`.
    pub metadata: Vec<(String, DeferredValue)>,
    /// The payload, at most [`EVENT_MAX`] bytes.
    #[serde(skip)]
    pub payload: Vec<u8>,
}

/// A value of a deferred call's metadata. Text, so that others read the file, unless it is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeferredValue {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for DeferredValue {
    fn from(value: Vec<u8>) -> Self {
        String::from_utf8(value).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl From<DeferredValue> for Vec<u8> {
    fn from(value: DeferredValue) -> Self {
        match value {
            DeferredValue::Text(text) => text.into_bytes(),
            DeferredValue::Bytes(bytes) => bytes,
        }
    }
}

/// The body of a request as it arrives.
pub trait RequestBody: Body<Data = Bytes, Error: std::fmt::Display> + Unpin {}

impl<B: Body<Data = Bytes, Error: std::fmt::Display> + Unpin> RequestBody for B {}

/// Calls functions for HTTP requests; clones share the bounds.
#[derive(Clone, Debug)]
pub struct FunctionFront {
    caller: HostCaller,
    limits: HttpLimits,
    requests: Arc<Semaphore>,
    memory: BodyMemory,
    /// For large responses that clients have not read yet.
    responses: BodyMemory,
}

impl FunctionFront {
    /// Calls in the name of `caller`, within `limits`.
    #[must_use]
    pub fn new(caller: HostCaller, limits: HttpLimits) -> Self {
        let requests = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        let [memory, responses] = [(); 2].map(|()| BodyMemory::new(limits.body_bytes));
        Self { caller, limits, requests, memory, responses }
    }

    /// The same for another runtime: bounds are shared, connections to functions are not.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self { caller: self.caller.sibling(), ..self.clone() }
    }

    /// Number of requests that are being served.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.limits.requests.saturating_sub(self.requests.available_permits())
    }

    /// Calls `target` with the body of a request, and answers with the response. The function reads `path` as the
    /// request's. Dropping the future, when the client is gone, gives the call up.
    pub async fn call<B: RequestBody>(
        &self,
        target: &str,
        path: &str,
        request: Request<B>,
    ) -> Response<ResponseBody> {
        let id = CallId(bytes16());
        let has_trace = request.headers().contains_key(TRACEPARENT);
        let is_head = request.method() == Method::HEAD;
        let (recorded, answered) = match self.try_call(id, target, path, request).await {
            Ok((recorded, answered)) => (recorded, answered),
            Err(response) => (false, Err(response)),
        };
        let mut response = match answered {
            Ok(answer) => self.response_of(answer, is_head),
            Err(response) => response,
        };
        name_call(&mut response, id);
        if has_trace {
            let recorded = if recorded { "recorded" } else { "unrecorded" };
            response.headers_mut().insert(TRACE, HeaderValue::from_static(recorded));
        }
        response
    }

    /// Stores a one-way message for `target` and answers 202 with its id. The function must run somewhere, so that it
    /// is known to be reachable by HTTP.
    pub async fn emit<B: RequestBody>(
        &self,
        target: &str,
        path: &str,
        request: Request<B>,
    ) -> Response<ResponseBody> {
        let id = CallId(bytes16());
        match self.try_emit(id, target, path, request).await {
            Ok(()) => accepted(id, "stored; the function will get it at least once"),
            Err(mut response) => {
                name_call(&mut response, id);
                response
            }
        }
    }

    /// Receives a request whose call is made later, of at most [`EVENT_MAX`] bytes. The function must run somewhere.
    ///
    /// # Errors
    /// The response when the request is refused.
    pub async fn defer<B: RequestBody>(
        &self,
        target: &str,
        path: &str,
        request: Request<B>,
    ) -> Result<DeferredCall, Response<ResponseBody>> {
        let (head, body) = parts_of(request);
        let id = CallId(bytes16());
        let (call, _memory) = self.receive(id, target, path, &head, body, EVENT_MAX).await?;
        let unread = |error: SegmentError| {
            sentence(StatusCode::SERVICE_UNAVAILABLE, &format!("the body cannot be read: {error}"))
        };
        let metadata = call.metadata.into_iter().map(|pair| (pair.key, pair.value.into()));
        Ok(DeferredCall {
            target: target.to_owned(),
            traceparent: call.trace.traceparent.to_owned(),
            tracestate: call.trace.accepted_state(),
            metadata: metadata.collect(),
            payload: call.payload.into_vec().map_err(unread)?,
        })
    }

    /// Makes a deferred call now. Bounds of requests do not count it: its owner bounds them.
    ///
    /// # Errors
    /// One [`CallError`].
    pub async fn run(&self, id: CallId, call: DeferredCall) -> Result<HostAnswer, CallError> {
        let DeferredCall { target, traceparent, tracestate, metadata, payload } = call;
        let metadata = metadata.into_iter().map(|(key, value)| Metadata::of(key, value)).collect();
        let deadline = Instant::now() + self.limits.request_timeout;
        let trace = TraceHeaders { traceparent: &traceparent, tracestate: &tracestate };
        let call = HostCall::new(&target, Payload::Inline(payload));
        self.caller.call(HostCall { id, deadline, trace, metadata, ..call }).await
    }

    /// Whether the call's trace is recorded, and its end; an error if there was no call.
    async fn try_call<B: RequestBody>(
        &self,
        id: CallId,
        target: &str,
        path: &str,
        request: Request<B>,
    ) -> Result<(bool, Result<HostAnswer, Response<ResponseBody>>), Response<ResponseBody>> {
        let (head, body) = parts_of(request);
        let (call, _memory) = self.receive(id, target, path, &head, body, u64::MAX).await?;
        let _permit = self.admit().map_err(|refused| *refused)?;
        let (recorded, ended) = self.caller.call_traced(call).await;
        let answered = ended.map_err(|error| {
            let mut response = refused_call(id, target, &error);
            *response.status_mut() = status_of_call(&error);
            response
        });
        Ok((recorded, answered))
    }

    async fn try_emit<B: RequestBody>(
        &self,
        id: CallId,
        target: &str,
        path: &str,
        request: Request<B>,
    ) -> Result<(), Response<ResponseBody>> {
        let (head, body) = parts_of(request);
        let (call, _memory) = self.receive(id, target, path, &head, body, EVENT_MAX).await?;
        let _permit = self.admit().map_err(|refused| *refused)?;
        self.caller.emit(call).await.map_err(|error| refused_call(id, target, &error))
    }

    /// A function's answer. A browser does not guess what a body is that the function has not named.
    fn response_of(&self, answer: HostAnswer, is_head: bool) -> Response<ResponseBody> {
        let body = match answer.payload {
            Payload::Inline(bytes) => ResponseBody::from(bytes),
            Payload::Segment(segment) => match self.responses.take(segment.len()) {
                Ok(memory) => ResponseBody::of_segment(segment, memory),
                Err(_none) => {
                    let text = "other clients read their responses too slowly: try again";
                    return sentence(StatusCode::SERVICE_UNAVAILABLE, text);
                }
            },
        };
        let (status, mut headers) = metadata::head_of(&answer.metadata, is_head);
        // The length that the function set is not that of its body, which is not sent.
        let body = if headers.contains_key(CONTENT_LENGTH) { Vec::new().into() } else { body };
        let mut response = Response::new(body);
        if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(OCTETS));
        }
        headers.entry(X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }

    fn admit(&self) -> Result<SemaphorePermit<'_>, Box<Response<ResponseBody>>> {
        self.requests.try_acquire().map_err(|_full| {
            let most = self.limits.requests;
            let text = format!("{most} requests are being served, the most at a time");
            Box::new(sentence(StatusCode::TOO_MANY_REQUESTS, &text))
        })
    }

    /// Receives a request whose body is within the function's limit and `most` bytes.
    async fn receive<'a, B: RequestBody>(
        &self,
        id: CallId,
        target: &'a str,
        path: &str,
        head: &'a Parts,
        body: B,
        most: u64,
    ) -> Result<ReceivedRequest<'a>, Response<ResponseBody>> {
        let deadline = Instant::now() + self.limits.request_timeout;
        let known = self.caller.limits(target, deadline).await;
        let callee = known.map_err(|error| refused_call(id, target, &error))?;
        let metadata = metadata::of_request(head, path);
        metadata::check_length(&metadata, callee.max_head()).map_err(|refused| *refused)?;
        let bytes = callee.max_payload.min(most);
        let limits = BodyLimits { bytes, stall: self.limits.stall_timeout, deadline };
        let ReceivedBody { payload, memory } =
            receive(body, limits, &self.memory).await.map_err(|error| refused(&error))?;
        // From here on the connection is not closed for another client.
        if head.extensions.get::<ConnectionState>().is_some_and(|state| !state.start_serving()) {
            return Err(sentence(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CLIENTS));
        }
        let text = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
        let traceparent = text(TRACEPARENT).unwrap_or_default();
        let trace = TraceHeaders { traceparent, tracestate: text(TRACESTATE).unwrap_or_default() };
        let call = HostCall { id, deadline, trace, metadata, ..HostCall::new(target, payload) };
        Ok((call, memory))
    }
}

/// A request that has arrived: the call, and the memory of its body, given back when it is dropped.
type ReceivedRequest<'a> = (HostCall<'a>, Option<OwnedSemaphorePermit>);

/// Head and body of a request. Several `tracestate` headers are one list, which becomes one header.
fn parts_of<B>(request: Request<B>) -> (Parts, B) {
    let (mut head, body) = request.into_parts();
    let is_several = head.headers.get_all(TRACESTATE).iter().nth(1).is_some();
    if is_several
        && let Ok(list) = HeaderValue::from_str(&metadata::joined(&head.headers, &TRACESTATE))
    {
        head.headers.insert(TRACESTATE, list);
    }
    (head, body)
}

/// The response of a call that failed.
fn refused_call(id: CallId, target: &str, error: &CallError) -> Response<ResponseBody> {
    log_failed(id, target, error);
    failed(error, id)
}

/// Logs what the client of a failed call does not read. What a client alone can cause, such as a wrong name, is not
/// worth a line.
pub fn log_failed(id: CallId, target: &str, error: &CallError) {
    match error.errno() {
        Errno::NoSuchFunction | Errno::InvalidArgument | Errno::Overloaded => {
            tracing::debug!(call = %id, target, %error, "an HTTP request failed");
        }
        _ => tracing::warn!(call = %id, target, %error, "an HTTP request failed"),
    }
}

/// Tells the client the id under which log and traces have its request.
fn name_call(response: &mut Response<ResponseBody>, id: CallId) {
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(CALL_ID, id);
    }
}

/// 202 with the id of what was accepted.
#[must_use]
pub fn accepted(id: CallId, text: &str) -> Response<ResponseBody> {
    let mut response = sentence(StatusCode::ACCEPTED, text);
    name_call(&mut response, id);
    response
}

/// The response to a body that was not received.
fn refused(error: &BodyError) -> Response<ResponseBody> {
    sentence(error.status(), &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferred_value_is_text_unless_it_is_none() {
        let written = |value: &[u8]| {
            let value = DeferredValue::from(value.to_vec());
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<DeferredValue>(&text).unwrap(), value);
            (text, Vec::from(value))
        };
        assert_eq!(written("é".as_bytes()), ("\"é\"".to_owned(), "é".as_bytes().to_vec()));
        assert_eq!(written(b"\xe9"), ("[233]".to_owned(), b"\xe9".to_vec()));
    }
}
