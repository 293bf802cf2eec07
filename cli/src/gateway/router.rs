//! Answers each request by its path.

use std::time::Instant;

use cwasi_host::http::front::FunctionFront;
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::server::Service;
use cwasi_host::http::status::sentence;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response, StatusCode};

use super::callbacks::{CALLBACK_URL, Callbacks};
use super::origins::Origins;
use super::paths::{self, Endpoint, Target};
use super::system::{System, unserved};
use crate::access::Access;
use crate::http::{metrics, reading};

#[derive(Clone)]
pub(super) struct Router {
    system: System,
    front: FunctionFront,
    access: Access,
    origins: Origins,
    callbacks: Option<Callbacks>,
}

impl Service for Router {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        let endpoint = paths::parse(&path);
        if endpoint == Endpoint::Health {
            return sentence(StatusCode::OK, "serving");
        }
        if !self.origins.admits(&request) {
            let text = "the gateway is not called by this name: its operator says by --allowed-host which names it has";
            return sentence(StatusCode::MISDIRECTED_REQUEST, text);
        }
        if !self.access.is_restricted() && self.origins.is_foreign(request.headers()) {
            let text = "the gateway has no token, so it runs nothing for other web pages: its operator lists them by \
                        --cors-origin, or sets --token-file";
            return sentence(StatusCode::FORBIDDEN, text);
        }
        match endpoint {
            // A preflight request has no token.
            Endpoint::Function(_) | Endpoint::AsyncFunction(_) => {
                self.origins.answer(request, |request| self.serve(&endpoint, request)).await
            }
            endpoint => self.serve(&endpoint, request).await,
        }
    }
}

/// Both ways of sending the token are welcome.
fn unauthorized() -> Response<ResponseBody> {
    let text = "a token is needed: Authorization: Bearer TOKEN, or as the password of basic authentication";
    let mut response = sentence(StatusCode::UNAUTHORIZED, text);
    for challenge in ["Bearer", "Basic realm=\"cwasi\""] {
        response.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

/// How a function gets the body.
enum Way {
    Call,
    Message,
}

impl Router {
    /// Answers a client that has the token.
    async fn serve(
        &self,
        endpoint: &Endpoint<'_>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !self.access.admits(authorization) {
            return unauthorized();
        }
        match endpoint {
            Endpoint::Function(target) => self.call(target, request, Way::Call).await,
            Endpoint::AsyncFunction(target) => self.call(target, request, Way::Message).await,
            Endpoint::System(rest) => self.system.answer(request.method(), rest, request.uri()),
            Endpoint::Unserved => unserved(),
            Endpoint::Metrics => reading(request.method(), || self.metrics(request.headers())),
            Endpoint::Health | Endpoint::Unknown => {
                let text = "there are /function/NAME, /async-function/NAME, /system/functions, /system/logs, /healthz and /metrics";
                sentence(StatusCode::NOT_FOUND, text)
            }
        }
    }

    pub(super) const fn new(
        system: System,
        front: FunctionFront,
        access: Access,
        origins: Origins,
        callbacks: Option<Callbacks>,
    ) -> Self {
        Self { system, front, access, origins, callbacks }
    }

    /// Writes and exports the recorded traces; at the end of the process.
    pub async fn flush(&self) {
        self.system.caller.flush().await;
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
        let Target { name, namespace, path } = *target;
        let System { caller, namespaces, metrics, .. } = &self.system;
        let function = &namespaces.target(namespaces.resolve(caller, namespace), name);
        let response = match way {
            Way::Call => self.front.call(function, path, request).await,
            Way::Message => self.message(function, path, request).await,
        };
        // A function may answer with a status of its own, also 404.
        let found = !cwasi_host::http::status::names_no_function(&response);
        metrics.count(function, found, response.status().as_u16(), began.elapsed());
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

    fn metrics(&self, request: &HeaderMap) -> Response<ResponseBody> {
        let text = self.system.metrics.text(self.front.in_flight());
        metrics(request, text)
    }
}
