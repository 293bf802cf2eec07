//! `cwasi.protocol=openwhisk`: the port of an instance speaks OpenWhisk's action protocol. Runs in the shim daemon.
//!
//! - `POST /init`, once: code and environment, with which [`ActionHost::start`] starts the function.
//! - `POST /run`: one activation, whose end [`ActionHost::end_activation`] marks in the function's output.
//!
//! Invariants: every response is a JSON object of known length. Bodies are bounded, and one `/init` runs at a time.
//! A client that goes away gives up its activation, but not an initialization.
//!
//! - [`messages`]: the bodies of requests; [`json`]: their members.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::HttpLimits;
use super::connections::ConnectionState;
use super::request_body::{BodyError, BodyLimits, BodyMemory, ReceivedBody, receive};
use super::response_body::ResponseBody;
use super::server::{Service, TOO_MANY_CLIENTS};
use super::status::{sentence_of, status_of};
use crate::caller::{HostCall, HostCaller};
use cwasi_abi::Errno;
use cwasi_coordinator::delivered::Delivery;
use cwasi_modes::{CallError, Payload};

pub mod json;
pub mod messages;

use json::check_object;
use messages::{Activation, MessageError, activation, init, time_left};

/// Longest body of an `/init` in bytes.
pub const INIT_MAX: u64 = 64 << 20;
/// Bytes that the body of a `/run` has besides the parameters, at most.
const PROPERTIES_MAX: u64 = 64 << 10;
const MORE_THAN_ONCE: &str = "Cannot initialize the action more than once.";
const NO_CODE: &str = "Missing main/no code to execute.";
const NO_DICTIONARY: &str = "The action did not return a dictionary.";
/// Its output may have secrets of its operator.
const COMMAND_FAILED: &str =
    "the function ended with an error: the log has its output, under the id of this call";
const NOT_INITIALIZED: &str = "The action has not been initialized.";

/// Why an action does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither the request nor the image has code.
    #[error("{NO_CODE}")]
    NoCode,
    #[error("Initialization has failed due to: {0}")]
    Failed(String),
}

/// The instance behind the port.
pub trait ActionHost: Send + Sync + 'static {
    /// Starts the function. It can be called when this returns.
    fn start(&self, delivery: Delivery) -> impl Future<Output = Result<(), StartError>> + Send;

    /// Writes the line that ends an activation to stdout and stderr of the function.
    fn end_activation(&self) -> impl Future<Output = ()> + Send;

    /// Writes a line to the function's stderr.
    fn log(&self, text: &str) -> impl Future<Output = ()> + Send;
}

/// How far an action is; values of [`Inner::state`].
const COLD: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;

/// The service of one port.
#[derive(Debug)]
pub(super) struct ActionService<H>(Arc<Inner<H>>);

// Derived, it would ask for `H: Clone`.
impl<H> Clone for ActionService<H> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Inner<H> {
    caller: HostCaller,
    function: String,
    max_payload: u64,
    limits: HttpLimits,
    memory: BodyMemory,
    started_ms: u64,
    state: AtomicU8,
    host: Arc<H>,
}

impl<H: ActionHost> ActionService<H> {
    /// For the function of `caller`'s instance, whose payloads have at most `max_payload` bytes.
    pub(super) fn new(
        caller: HostCaller,
        function: &str,
        max_payload: u64,
        limits: HttpLimits,
        host: H,
    ) -> Self {
        let memory = BodyMemory::new(limits.body_bytes);
        let (state, host, started_ms) = (AtomicU8::new(COLD), Arc::new(host), now_ms());
        let function = function.to_owned();
        Self(Arc::new(Inner {
            caller,
            function,
            max_payload,
            limits,
            memory,
            started_ms,
            state,
            host,
        }))
    }

    async fn init(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let inner = &self.0;
        let Some(claim) = Claim::take(Arc::clone(inner)) else {
            inner.host.log(MORE_THAN_ONCE).await;
            return Err(Refusal::new(StatusCode::FORBIDDEN, MORE_THAN_ONCE));
        };
        let started = async {
            let (body, memory) = inner.receive(request, INIT_MAX).await?;
            let delivery = init(&body).map_err(|error| refused_init(&error))?;
            drop((body, memory));
            claim.start(delivery).await
        };
        let answered = started.await;
        if let Err(refusal) = &answered {
            inner.host.log(&refusal.text).await;
        }
        answered
    }

    async fn run(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let inner = &self.0;
        if inner.state.load(Ordering::Acquire) != READY {
            return Err(Refusal::new(StatusCode::FORBIDDEN, NOT_INITIALIZED));
        }
        let most = inner.max_payload.saturating_add(PROPERTIES_MAX);
        let (body, memory) = inner.receive(request, most).await?;
        let Activation { value, context, deadline_ms } =
            activation(&body).map_err(|error| refused_run(&error))?;
        drop(body);
        let left = time_left(deadline_ms, inner.started_ms, now_ms());
        let left = left.map_err(|error| refused_run(&error))?;
        let call = HostCall::new(&inner.function, Payload::Inline(value));
        let call = HostCall { deadline: Instant::now() + left, metadata: context, ..call };
        let mut end = ActivationEnd { host: Some(Arc::clone(&inner.host)) };
        let ended = inner.caller.call(call).await;
        drop(memory);
        end.mark().await;
        result_of(ended.and_then(|answer| {
            let unread = |error: cwasi_sys::segment::SegmentError| CallError::Internal {
                message: error.to_string(),
            };
            answer.payload.into_vec().map_err(unread)
        }))
    }
}

impl<H: ActionHost> Service for ActionService<H> {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let answered = match (request.method(), request.uri().path()) {
            (&Method::POST, "/init") => self.init(request).await,
            (&Method::POST, "/run") => self.run(request).await,
            (_, "/init" | "/run") => {
                Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "the method is POST"))
            }
            _ => Err(Refusal::new(StatusCode::NOT_FOUND, "an action has /init and /run")),
        };
        match answered {
            Ok(Answer(body)) => response(StatusCode::OK, body),
            Err(Refusal { status, text }) => response(status, error_body(&text)),
        }
    }
}

impl<H> Inner<H> {
    /// Receives a body, and the memory that it has.
    async fn receive(
        &self,
        request: Request<Incoming>,
        bytes: u64,
    ) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Refusal> {
        let (head, body) = request.into_parts();
        let deadline = Instant::now() + self.limits.request_timeout;
        let limits = BodyLimits { bytes, stall: self.limits.stall_timeout, deadline };
        let ReceivedBody { payload, memory } =
            receive(body, limits, &self.memory).await.map_err(|error| refused_body(&error))?;
        if head.extensions.get::<ConnectionState>().is_some_and(|state| !state.start_serving()) {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CLIENTS));
        }
        let unread = |error| refused_body(&BodyError::Segment(error));
        Ok((payload.into_vec().map_err(unread)?, memory))
    }
}

/// The right to start an action; dropped, the next `/init` may have it.
struct Claim<H> {
    inner: Arc<Inner<H>>,
    end: u8,
}

impl<H: ActionHost> Claim<H> {
    fn take(inner: Arc<Inner<H>>) -> Option<Self> {
        let (before, after) = (COLD, STARTING);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let taken = inner.state.compare_exchange(before, after, order.0, order.1);
        taken.ok().map(|_| Self { inner, end: COLD })
    }

    /// Starts it, also when the client has gone: what has begun cannot be taken back.
    async fn start(self, delivery: Delivery) -> Result<Answer, Refusal> {
        let starting = tokio::spawn(async move {
            // The whole of it, which is dropped at the end.
            let mut claim = self;
            claim.inner.host.start(delivery).await?;
            claim.end = READY;
            Ok(())
        });
        match starting.await {
            Ok(Ok(())) => Ok(Answer(br#"{"ok":true}"#.to_vec())),
            Ok(Err(error @ StartError::NoCode)) => Err(Refusal::new(StatusCode::FORBIDDEN, error)),
            Ok(Err(error @ StartError::Failed(_))) => {
                Err(Refusal::new(StatusCode::BAD_GATEWAY, error))
            }
            Err(error) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error)),
        }
    }
}

impl<H> Drop for Claim<H> {
    fn drop(&mut self) {
        self.inner.state.store(self.end, Ordering::Release);
    }
}

/// Marks the end of an activation, also of one whose client has gone.
struct ActivationEnd<H: ActionHost> {
    host: Option<Arc<H>>,
}

impl<H: ActionHost> ActivationEnd<H> {
    async fn mark(&mut self) {
        if let Some(host) = self.host.take() {
            host.end_activation().await;
        }
    }
}

impl<H: ActionHost> Drop for ActivationEnd<H> {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            tokio::spawn(async move { host.end_activation().await });
        }
    }
}

/// The body of a response 200: a JSON object.
struct Answer(Vec<u8>);

/// Any other response.
struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl ToString) -> Self {
        Self { status, text: text.to_string() }
    }
}

fn result_of(ended: Result<Vec<u8>, CallError>) -> Result<Answer, Refusal> {
    match ended {
        Ok(body) if check_object(&body).is_ok() => Ok(Answer(body)),
        Ok(_) => Err(Refusal::new(StatusCode::BAD_GATEWAY, NO_DICTIONARY)),
        // The action's own error: with another status OpenWhisk would discard the container.
        Err(error @ (CallError::Failed { .. } | CallError::CommandFailed { .. })) => {
            tracing::debug!(%error, "an activation failed");
            Ok(Answer(error_body(error_text(&error))))
        }
        Err(error) => {
            tracing::warn!(%error, "an activation failed");
            let status = match error.errno() {
                Errno::Trapped => StatusCode::BAD_GATEWAY,
                errno => status_of(errno),
            };
            Err(Refusal::new(status, error_text(&error)))
        }
    }
}

/// What the platform reads of an activation that failed: the action's own error is its result.
#[must_use]
pub fn error_text(error: &CallError) -> &str {
    match error {
        CallError::Failed { message } => message,
        CallError::CommandFailed { .. } => COMMAND_FAILED,
        other => sentence_of(other.errno()),
    }
}

fn error_body(text: &str) -> Vec<u8> {
    serde_json::json!({ "error": text }).to_string().into_bytes()
}

fn refused_init(error: &MessageError) -> Refusal {
    let status = match error {
        MessageError::Code(_) => StatusCode::BAD_GATEWAY,
        _ => StatusCode::BAD_REQUEST,
    };
    Refusal::new(status, error)
}

fn refused_run(error: &MessageError) -> Refusal {
    let status = match error {
        MessageError::Context { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        MessageError::Deadline => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    };
    Refusal::new(status, error)
}

fn refused_body(error: &BodyError) -> Refusal {
    Refusal::new(error.status(), error)
}

fn response(status: StatusCode, body: Vec<u8>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
