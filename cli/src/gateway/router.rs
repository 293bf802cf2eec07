//! Answers each request by its path.

use std::time::Instant;

use cwasi::shim::caller::HostCaller;
use cwasi::shim::http::front::FunctionFront;
use cwasi::shim::http::response_body::ResponseBody;
use cwasi::shim::http::server::Service;
use cwasi::shim::http::status::sentence;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;

use super::access::Access;
use super::callbacks::{CALLBACK_URL, Callbacks};
use super::metrics::Metrics;
use super::paths::{self, Place, Target};
use crate::http::{content, metrics, reading};

/// The gateway's answers.
#[derive(Clone)]
pub(super) struct Router {
    caller: HostCaller,
    front: FunctionFront,
    access: Access,
    metrics: Metrics,
    callbacks: Option<Callbacks>,
}

/// One function of the list, with OpenFaaS' names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedFunction {
    name: String,
    namespace: String,
    replicas: usize,
    available_replicas: usize,
}

impl Service for Router {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        let place = paths::parse(&path);
        if place == Place::Health {
            return sentence(StatusCode::OK, "serving");
        }
        let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !self.access.admits(authorization) {
            let text = "a bearer token is needed: Authorization: Bearer TOKEN";
            let mut response = sentence(StatusCode::UNAUTHORIZED, text);
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return response;
        }
        match place {
            Place::Function(target) => self.call(&target, request, Way::Call).await,
            Place::AsyncFunction(target) => self.call(&target, request, Way::Message).await,
            Place::Functions => reading(request.method(), || self.functions()),
            Place::Metrics => reading(request.method(), || self.metrics(request.headers())),
            Place::Health | Place::Unknown => {
                let text = "there are /function/NAME, /async-function/NAME, /system/functions, /healthz and /metrics";
                sentence(StatusCode::NOT_FOUND, text)
            }
        }
    }
}

/// How a function gets the body.
enum Way {
    Call,
    Message,
}

impl Router {
    pub(super) const fn new(
        caller: HostCaller,
        front: FunctionFront,
        access: Access,
        metrics: Metrics,
        callbacks: Option<Callbacks>,
    ) -> Self {
        Self { caller, front, access, metrics, callbacks }
    }

    /// Writes and exports the recorded traces; at the end of the process.
    pub async fn flush(&self) {
        self.caller.flush().await;
    }

    /// The same for another thread.
    pub(super) fn sibling(&self) -> Self {
        Self { front: self.front.sibling(), ..self.clone() }
    }

    async fn call(
        &self,
        target: &Target<'_>,
        mut request: Request<Incoming>,
        way: Way,
    ) -> Response<ResponseBody> {
        let began = Instant::now();
        if self.access.is_restricted() {
            // The gateway's token is none of the function's business.
            request.headers_mut().remove(AUTHORIZATION);
        }
        let Target { function, path } = target;
        let response = match way {
            Way::Call => self.front.call(function, path, request).await,
            Way::Message => self.message(function, path, request).await,
        };
        // A function may answer with a status of its own, also 404.
        let found = !cwasi::shim::http::status::names_no_function(&response);
        self.metrics.count(function, found, response.status().as_u16(), began.elapsed());
        response
    }

    /// Accepts a request that is answered later, or not at all.
    async fn message(
        &self,
        function: &str,
        path: &str,
        mut request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        // The URL may be a secret of the client.
        let Some(url) = request.headers_mut().remove(CALLBACK_URL) else {
            return self.front.emit(function, path, request).await;
        };
        let Some(callbacks) = &self.callbacks else {
            let text =
                "this gateway calls no X-Callback-Url: its operator has to set --callback-allow";
            return sentence(StatusCode::NOT_IMPLEMENTED, text);
        };
        callbacks.accept(&url, function, path, request).await
    }

    fn functions(&self) -> Response<ResponseBody> {
        let functions = match self.caller.functions() {
            Ok(functions) => functions,
            Err(error) => {
                return sentence(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
        };
        let listed: Vec<_> = functions
            .into_iter()
            .map(|function| ListedFunction {
                name: function.name,
                namespace: function.namespace,
                replicas: function.instances,
                available_replicas: function.instances,
            })
            .collect();
        match serde_json::to_string(&listed) {
            Ok(json) => content("application/json", json),
            Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    fn metrics(&self, request: &HeaderMap) -> Response<ResponseBody> {
        let text = self.metrics.text(self.front.in_flight());
        metrics(request, text)
    }
}
