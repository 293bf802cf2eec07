//! The paths of the executor: `/ID/init`, `/ID/run`, `/ID/destroy`.

use std::sync::Arc;
use std::time::Duration;

use cwasi_host::http::openwhisk::INIT_MAX;
use cwasi_host::http::openwhisk::messages::{activation, init};
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::server::Service;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::actions::Actions;
use super::error::ActionError;
use super::messages::{capabilities, ended};
use crate::access::Access;

/// Longest wait for a body.
const BODY_WAIT: Duration = Duration::from_secs(60);
/// Most bodies in memory at a time.
const BODIES_MAX: usize = 16;

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
        let _permit = self.bodies.acquire().await.map_err(bad)?;
        let body = receive(request).await?;
        let asked = capabilities(&body).map_err(bad)?;
        let delivery = init(&body).map_err(bad)?;
        drop(body);
        self.actions.init(id, delivery, &asked).await?;
        Ok(Vec::new())
    }

    async fn run(&self, id: &str, request: Request<Incoming>) -> Result<Vec<u8>, Refusal> {
        let permit = self.bodies.acquire().await.map_err(bad)?;
        let body = receive(request).await?;
        let activation = activation(&body).map_err(bad)?;
        drop((body, permit));
        Ok(ended(&self.actions.run(id, activation).await?))
    }
}

async fn receive(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let most = usize::try_from(INIT_MAX).unwrap_or(usize::MAX);
    let receiving = Limited::new(request.into_body(), most).collect();
    let refused = |status, text: String| Refusal(status, text);
    match timeout(BODY_WAIT, receiving).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(refused(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())),
        Err(_elapsed) => {
            Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".to_owned()))
        }
    }
}

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
