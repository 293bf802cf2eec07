//! Responses of the command's own servers.

use cwasi::shim::http::response_body::ResponseBody;
use cwasi::shim::http::status::sentence;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};

/// Media type of metrics for Prometheus.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers a method that reads.
pub fn reading(
    method: &Method,
    answer: impl FnOnce() -> Response<ResponseBody>,
) -> Response<ResponseBody> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return answer();
    }
    sentence(StatusCode::METHOD_NOT_ALLOWED, "use GET")
}

/// A response of this media type.
#[must_use]
pub fn content(kind: &'static str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Full::new(body.into())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
