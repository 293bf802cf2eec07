//! `X-Callback-Url`: a call whose answer the gateway sends to a URL of the client.
//!
//! A call is accepted when it lies in the [`spool`]. It is then made like any other, its answer is stored, and sent
//! until the receiver takes it or [`ATTEMPTS_MAX`] attempts failed. A gateway that starts continues with what the spool
//! has: a call may be made twice, and an answer may be sent twice, but neither is forgotten.
//!
//! Invariants: bodies of calls that wait are on disk, not in memory. Numbers of calls, of those that run, and of
//! answers on their way are bounded. The end of each call is counted, and one that is not delivered is logged.
//!
//! - [`destination`]: where an answer may go. [`delivery`]: one POST. [`spool`]: the files.

mod delivery;
mod destination;
mod spool;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_abi::Errno;
use cwasi_host::caller::HostAnswer;
use cwasi_host::http::front::{CALL_ID, DeferredCall, FunctionFront, accepted, log_failed};
use cwasi_host::http::metadata::head_of;
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::status::{ERRNO_HEADER, client_text, sentence, status_of_call};
use cwasi_host::network::EVENT_MAX;
use cwasi_modes::CallError;
use cwasi_networked::Backoff;
use cwasi_sys::random::bytes16;
use cwasi_wire::egress::Egress;
use cwasi_wire::ids::CallId;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::metrics::{CallbackEnd, Metrics};
use delivery::{Delivery, DeliveryError};
use destination::{Destination, DestinationError};
use spool::{Spool, SpoolFile};

/// Header of OpenFaaS by which a client asks for a callback.
pub(super) const CALLBACK_URL: HeaderName = HeaderName::from_static("x-callback-url");
/// Headers of the callback, as OpenFaaS has them.
const FUNCTION_NAME: HeaderName = HeaderName::from_static("x-function-name");
const FUNCTION_STATUS: HeaderName = HeaderName::from_static("x-function-status");
const DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");

/// Most calls that are not finished.
const CALLS_MAX: usize = 1024;
/// Most of them that run at a time.
const RUNNING_MAX: usize = 32;
/// Most answers that are being sent at a time.
const SENDING_MAX: usize = 32;
/// Most attempts to make a call that no instance accepts, and to send an answer.
const ATTEMPTS_MAX: u32 = 8;
/// Pauses between attempts: together about 4 minutes.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Calls with callbacks; clones share them.
#[derive(Clone)]
pub(super) struct Callbacks(Arc<Inner>);

struct Inner {
    front: FunctionFront,
    spool: Spool,
    delivery: Delivery,
    metrics: Metrics,
    calls: Arc<Semaphore>,
    running: Semaphore,
    sending: Semaphore,
    /// Calls run here, whichever thread accepted them.
    runtime: Handle,
}

/// A call in the spool; its payload is the body of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCall {
    url: String,
    call: DeferredCall,
}

/// An answer in the spool; its body is that of the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredAnswer {
    url: String,
    function: String,
    status: u16,
    content_type: String,
    /// The errno's name of a call that failed.
    errno: String,
    seconds: f64,
}

impl Callbacks {
    /// Opens the spool in `directory`, and continues with the calls in it, on the current runtime.
    ///
    /// # Errors
    /// When the directory cannot be used, or TLS not be set up.
    pub(super) fn start(
        directory: &Path,
        allow: Egress,
        front: FunctionFront,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let callbacks = Self(Arc::new(Inner {
            front,
            spool: Spool::open(directory)?,
            delivery: Delivery::new(allow).map_err(io::Error::other)?,
            metrics,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            running: Semaphore::new(RUNNING_MAX),
            sending: Semaphore::new(SENDING_MAX),
            runtime: Handle::current(),
        }));
        for id in callbacks.0.spool.unfinished()? {
            // There are no more than there were permits, before.
            let permit = Arc::clone(&callbacks.0.calls).try_acquire_owned().ok();
            callbacks.spawn(id, permit);
        }
        Ok(callbacks)
    }

    /// Stores a call whose answer goes to `url`, and answers 202 with its id.
    pub(super) async fn accept(
        &self,
        url: &HeaderValue,
        target: &str,
        path: &str,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        self.try_accept(url, target, path, request).await.unwrap_or_else(|refused| refused)
    }

    async fn try_accept(
        &self,
        url: &HeaderValue,
        target: &str,
        path: &str,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Response<ResponseBody>> {
        let url = url.to_str().unwrap_or_default();
        let to = Destination::parse(url).map_err(|error| refused(&error))?;
        self.0.delivery.check(&to).await.map_err(|error| refused(&error))?;
        let permit = Arc::clone(&self.0.calls).try_acquire_owned().map_err(|_full| {
            let text =
                format!("{CALLS_MAX} calls with callbacks are not finished, the most at a time");
            sentence(StatusCode::TOO_MANY_REQUESTS, &text)
        })?;
        let mut call = self.0.front.defer(target, path, request).await?;
        let (id, payload) = (CallId(bytes16()), std::mem::take(&mut call.payload));
        let stored = StoredCall { url: url.to_owned(), call };
        self.in_spool(move |spool| spool.store(id, SpoolFile::Call, &stored, &payload))
            .await
            .map_err(|error| {
                let text = format!("the call cannot be stored: {error}");
                sentence(StatusCode::SERVICE_UNAVAILABLE, &text)
            })?;
        self.spawn(id, Some(permit));
        Ok(accepted(id, "stored; the function's answer will be sent to X-Callback-Url"))
    }

    fn spawn(&self, id: CallId, permit: Option<OwnedSemaphorePermit>) {
        let callbacks = self.clone();
        self.0.runtime.spawn(async move {
            let ended = match callbacks.run(id).await {
                Ok(ended) => ended,
                Err(error) => {
                    callbacks.give_up(id, &error).await;
                    CallbackEnd::Undelivered
                }
            };
            callbacks.0.metrics.count_callback(ended);
            drop(permit);
        });
    }

    /// Logs why the files of a call cannot be used, and sets damaged ones aside.
    async fn give_up(&self, id: CallId, error: &io::Error) {
        let mut kept = String::new();
        if error.kind() == io::ErrorKind::InvalidData {
            let aside = self.in_spool(move |spool| {
                spool
                    .set_aside(id, SpoolFile::Answer)
                    .or_else(|_no_answer| spool.set_aside(id, SpoolFile::Call))
            });
            kept = aside
                .await
                .map_or_else(|error| error.to_string(), |path| path.display().to_string());
        }
        tracing::error!(%id, %error, kept, "a call with a callback ends: its files cannot be used");
    }

    /// Makes a call, unless its answer is there already, and sends the answer.
    async fn run(&self, id: CallId) -> io::Result<CallbackEnd> {
        let answered =
            self.in_spool(move |spool| spool.load::<StoredAnswer>(id, SpoolFile::Answer));
        if answered.await?.is_none() {
            self.make(id).await?;
        }
        let ended = self.send(id).await?;
        self.in_spool(move |spool| spool.remove(id, SpoolFile::Answer)).await?;
        Ok(ended)
    }

    /// Makes a call and stores its answer.
    async fn make(&self, id: CallId) -> io::Result<()> {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        for attempt in 1.. {
            let permit = self.0.running.acquire().await.map_err(io::Error::other)?;
            let loaded = self.in_spool(move |spool| spool.load::<StoredCall>(id, SpoolFile::Call));
            let (StoredCall { url, mut call }, payload) =
                loaded.await?.ok_or(io::ErrorKind::NotFound)?;
            call.payload = payload;
            let (began, function) = (Instant::now(), name_of(&call.target));
            let ended = self.0.front.run(id, call).await;
            if attempt < ATTEMPTS_MAX && ended.as_ref().is_err_and(may_work_later) {
                drop(permit);
                sleep(backoff.pause()).await;
                continue;
            }
            let seconds = began.elapsed().as_secs_f64();
            if let Err(error) = &ended {
                log_failed(id, &function, error);
            }
            let (answer, body) = stored(id, ended, url, function, seconds);
            self.in_spool(move |spool| {
                spool.store(id, SpoolFile::Answer, &answer, &body)?;
                spool.remove(id, SpoolFile::Call)
            })
            .await?;
            break;
        }
        Ok(())
    }

    /// Sends an answer until the receiver takes it.
    async fn send(&self, id: CallId) -> io::Result<CallbackEnd> {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        for attempt in 1.. {
            let permit = self.0.sending.acquire().await.map_err(io::Error::other)?;
            let loaded = self.in_spool(move |spool| spool.load(id, SpoolFile::Answer)).await?;
            let (answer, body) = loaded.ok_or(io::ErrorKind::NotFound)?;
            let sent = self.post(id, &answer, body).await;
            drop(permit);
            let reason = match sent {
                Ok(status) if status.is_success() => return Ok(CallbackEnd::Delivered),
                Ok(status) => format!("it answered {status}"),
                Err(ref error) => error.to_string(),
            };
            if attempt >= ATTEMPTS_MAX || !is_transient(&sent) {
                // Paths and queries may be secrets.
                let host =
                    Destination::parse(&answer.url).map_or_else(|_| String::new(), |to| to.host());
                tracing::warn!(%id, function = answer.function, host, reason, attempt, "an answer was not delivered");
                return Ok(CallbackEnd::Undelivered);
            }
            sleep(backoff.pause()).await;
        }
        Ok(CallbackEnd::Undelivered)
    }

    async fn post(
        &self,
        id: CallId,
        answer: &StoredAnswer,
        body: Vec<u8>,
    ) -> Result<StatusCode, DeliveryError> {
        let to = Destination::parse(&answer.url)?;
        let request = request_of(id, answer, &to, body).map_err(io::Error::other)?;
        self.0.delivery.post(&to, request).await
    }

    /// Uses the spool, which blocks.
    async fn in_spool<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let inner = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || work(&inner.spool)).await.map_err(io::Error::other)?
    }
}

/// The response to a request whose URL the gateway does not call.
fn refused(error: &DestinationError) -> Response<ResponseBody> {
    let status = match error {
        DestinationError::Url(_) => StatusCode::BAD_REQUEST,
        DestinationError::Forbidden { .. } => StatusCode::FORBIDDEN,
        DestinationError::Lookup { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    sentence(status, &error.to_string())
}

/// A function as paths name it.
fn name_of(target: &str) -> String {
    match target.split_once('/') {
        Some((namespace, name)) => format!("{name}.{namespace}"),
        None => target.to_owned(),
    }
}

/// True if the call was not accepted by any instance, and may be later.
fn may_work_later(error: &CallError) -> bool {
    matches!(error.errno(), Errno::Overloaded | Errno::Unreachable)
}

/// True if a receiver may take the same answer later.
fn is_transient(sent: &Result<StatusCode, DeliveryError>) -> bool {
    match sent {
        Ok(status) => {
            status.is_server_error()
                || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        }
        Err(DeliveryError::Destination(error)) => error.is_transient(),
        Err(_) => true,
    }
}

/// An answer as the spool has it.
fn stored(
    id: CallId,
    ended: Result<HostAnswer, CallError>,
    url: String,
    function: String,
    seconds: f64,
) -> (StoredAnswer, Vec<u8>) {
    let ended = ended.and_then(|answer| {
        let (length, limit) = (answer.payload.len(), EVENT_MAX);
        if length > limit {
            return Err(CallError::too_large("answer for a callback", length, limit));
        }
        let (status, headers) = head_of(&answer.metadata, false);
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.unwrap_or("application/octet-stream").to_owned();
        let body = answer.payload.into_vec();
        let body = body.map_err(|error| CallError::Internal { message: error.to_string() })?;
        Ok((status, kind, body))
    });
    let (status, content_type, errno, body) = match ended {
        Ok((status, kind, body)) => (status, kind, String::new(), body),
        Err(error) => {
            let text = format!("{}\n", client_text(&error, id)).into_bytes();
            let kind = "text/plain; charset=utf-8".to_owned();
            (status_of_call(&error), kind, error.errno().name().to_owned(), text)
        }
    };
    let status = status.as_u16();
    (StoredAnswer { url, function, status, content_type, errno, seconds }, body)
}

fn request_of(
    id: CallId,
    answer: &StoredAnswer,
    to: &Destination,
    body: Vec<u8>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&to.path)
        .header(HOST, &to.authority)
        .header(USER_AGENT, concat!("cwasi-gateway/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, &answer.content_type)
        .header(CALL_ID, id.to_string())
        .header(FUNCTION_NAME, &answer.function)
        .header(FUNCTION_STATUS, answer.status)
        .header(DURATION_SECONDS, format!("{:.6}", answer.seconds));
    if !answer.errno.is_empty() {
        request = request.header(ERRNO_HEADER, &answer.errno);
    }
    request.body(Full::from(body))
}
