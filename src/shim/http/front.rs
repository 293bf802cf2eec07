//! One HTTP request to one function: the body in, the call, the response out.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::request_body::{BodyError, BodyLimits, BodyMemory, receive};
use super::response_body::ResponseBody;
use super::status::{failed, sentence};
use super::{HEADERS_MAX, HttpLimits};
use crate::modes::CallError;
use crate::shim::caller::{HostAnswer, HostCall, HostCaller};

/// Header with the trace context.
const TRACEPARENT: &str = "traceparent";

/// Calls functions for HTTP requests; clones share the bounds.
#[derive(Clone, Debug)]
pub struct FunctionFront {
    caller: HostCaller,
    limits: HttpLimits,
    requests: Arc<Semaphore>,
    memory: BodyMemory,
}

impl FunctionFront {
    /// Calls in the name of `caller`, within `limits`.
    #[must_use]
    pub fn new(caller: HostCaller, limits: HttpLimits) -> Self {
        let requests = Arc::new(Semaphore::new(limits.requests.min(Semaphore::MAX_PERMITS)));
        let memory = BodyMemory::new(limits.body_bytes);
        Self { caller, limits, requests, memory }
    }

    /// Number of requests that are being served.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.limits.requests.saturating_sub(self.requests.available_permits())
    }

    /// Calls `target` with the body of a request, and answers with the response. When the future is dropped, because
    /// the client is gone, the call is given up.
    pub async fn call<B>(&self, target: &str, request: Request<B>) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        match self.try_call(target, request).await {
            Ok(answer) => Response::new(ResponseBody::from(answer.payload)),
            Err(response) => response,
        }
    }

    async fn try_call<B>(
        &self,
        target: &str,
        request: Request<B>,
    ) -> Result<HostAnswer, Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let Ok(_permit) = self.requests.try_acquire() else {
            let text =
                format!("{} requests are being served, the most at a time", self.limits.requests);
            return Err(sentence(StatusCode::TOO_MANY_REQUESTS, &text));
        };
        let (head, body) = request.into_parts();
        check_headers(&head.headers)?;
        let deadline = Instant::now() + self.limits.request_timeout;
        let bytes =
            self.caller.max_payload(target, deadline).await.map_err(|error| failed(&error))?;
        let limits = BodyLimits { bytes, stall: self.limits.stall_timeout, deadline };
        let body = receive(body, limits, &self.memory).await.map_err(|error| refused(&error))?;
        let traceparent = head.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let traceparent = traceparent.unwrap_or_default();
        let call = HostCall { target, payload: body.payload, deadline, traceparent };
        let ended = self.caller.call(call).await;
        drop(body.memory);
        ended.map_err(|error| match error {
            // The request was within the limit, so it is the response that is not.
            CallError::TooLarge(_) => sentence(StatusCode::BAD_GATEWAY, &error.to_string()),
            error => failed(&error),
        })
    }
}

fn check_headers(headers: &HeaderMap) -> Result<(), Response<ResponseBody>> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes <= HEADERS_MAX {
        return Ok(());
    }
    let text = format!("the headers have {bytes} bytes, {HEADERS_MAX} are the most");
    Err(sentence(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &text))
}

/// The response to a body that was not received.
fn refused(error: &BodyError) -> Response<ResponseBody> {
    let status = match error {
        BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
        BodyError::Broken(_) => StatusCode::BAD_REQUEST,
        BodyError::NoMemory => StatusCode::TOO_MANY_REQUESTS,
        BodyError::Segment(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    sentence(status, &error.to_string())
}
