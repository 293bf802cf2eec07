//! The paths of the executor: `/ID/init`, `/ID/run`, `/ID/destroy`.

use std::sync::Arc;
use std::time::Duration;

use cwasi_host::http::openwhisk::INIT_MAX;
use cwasi_host::http::openwhisk::messages::{activation, init};
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::server::Service;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::actions::Actions;
use super::error::ActionError;
use super::messages::{capabilities, ended};
use crate::access::Access;

/// Longest wait for a body, and for its next bytes.
const BODY_WAIT: Duration = Duration::from_secs(60);
const STALL_MAX: Duration = Duration::from_secs(15);
/// Bytes of a body beyond which it takes from [`BODIES_MAX`].
const SMALL: usize = 64 << 10;
/// Most bytes of all larger bodies that have arrived and are not done with. More get 429.
const BODIES_MAX: usize = 1 << 30;

/// Clones share the actions.
#[derive(Clone)]
pub(super) struct Executor {
    actions: Arc<Actions>,
    access: Access,
    bodies: Arc<Semaphore>,
}

/// A response other than 200.
struct Refusal(StatusCode, String);

impl From<ActionError> for Refusal {
    fn from(error: ActionError) -> Self {
        let status = match &error {
            ActionError::Name(_) => StatusCode::BAD_REQUEST,
            ActionError::Denied(_) | ActionError::Folder { .. } => StatusCode::FORBIDDEN,
            ActionError::Ends => StatusCode::SERVICE_UNAVAILABLE,
            ActionError::Unknown(_) | ActionError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

fn bad(error: impl ToString) -> Refusal {
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl Executor {
    pub(super) fn new(actions: Actions, access: Access) -> Self {
        let bodies = Arc::new(Semaphore::new(BODIES_MAX));
        Self { actions: Arc::new(actions), access, bodies }
    }

    /// Ends all actions.
    pub(super) async fn end(self) {
        self.actions.end().await;
    }

    async fn serve(&self, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        if request.headers().contains_key(ORIGIN) {
            let text = "web pages are no clients of the executor";
            return Err(Refusal(StatusCode::FORBIDDEN, text.to_owned()));
        }
        let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !self.access.admits(authorization) {
            let text = "the executor's token is needed: Authorization: Bearer TOKEN";
            return Err(Refusal(StatusCode::UNAUTHORIZED, text.to_owned()));
        }
        let path = request.uri().path().to_owned();
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let (id, verb) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match (request.method(), verb) {
            (&Method::POST, "init") => self.init(id, request).await,
            (&Method::POST, "run") => self.run(id, request).await,
            (&Method::POST, "destroy") => {
                self.actions.destroy(id).await?;
                Ok(Vec::new())
            }
            _ => {
                let text = "the executor has POST /ID/init, /ID/run and /ID/destroy";
                Err(Refusal(StatusCode::NOT_FOUND, text.to_owned()))
            }
        }
    }

    async fn init(&self, id: &str, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let (body, _memory) = self.receive(request).await?;
        let asked = capabilities(&body).map_err(bad)?;
        let delivery = init(&body).map_err(bad)?;
        drop(body);
        self.actions.init(id, delivery, &asked).await?;
        Ok(Vec::new())
    }

    async fn run(&self, id: &str, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let (body, memory) = self.receive(request).await?;
        let activation = activation(&body).map_err(bad)?;
        drop((body, memory));
        Ok(ended(&self.actions.run(id, activation).await?))
    }

    /// Receives a body. It takes memory for bytes that have arrived, so that one that never arrives delays no other.
    async fn receive(&self, request: Request<Incoming>) -> Result<Body, Refusal> {
        let most = usize::try_from(INIT_MAX).unwrap_or(usize::MAX);
        let (mut body, deadline) = (request.into_body(), Instant::now() + BODY_WAIT);
        let (mut bytes, mut memory) = (Vec::new(), None::<OwnedSemaphorePermit>);
        loop {
            let until = deadline.min(Instant::now() + STALL_MAX);
            let Ok(frame) = timeout_at(until, body.frame()).await else {
                let text = "the body did not arrive in time".to_owned();
                return Err(Refusal(StatusCode::REQUEST_TIMEOUT, text));
            };
            let Some(frame) = frame else { return Ok((bytes, memory)) };
            let frame =
                frame.map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.to_string()))?;
            // Trailers are no part of it.
            let Ok(data) = frame.into_data() else { continue };
            bytes.extend_from_slice(&data);
            if bytes.len() > most {
                let text = format!("the body has more than {most} bytes");
                return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, text));
            }
            if bytes.len() > SMALL {
                let more = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let Ok(more) = Arc::clone(&self.bodies).try_acquire_many_owned(more) else {
                    let text =
                        "other clients' bodies fill the memory that there is for them; try again";
                    return Err(Refusal(StatusCode::TOO_MANY_REQUESTS, text.to_owned()));
                };
                match &mut memory {
                    Some(memory) => memory.merge(more),
                    None => memory = Some(more),
                }
            }
        }
    }
}

/// A body, and the memory that it has, given back when it is dropped.
type Body = (Vec<u8>, Option<OwnedSemaphorePermit>);

impl Service for Executor {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (status, body) = match self.serve(request).await {
            Ok(body) => (StatusCode::OK, body),
            Err(Refusal(status, text)) => {
                (status, serde_json::json!({ "error": text }).to_string().into_bytes())
            }
        };
        let mut response = Response::new(ResponseBody::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
