//! Errors of calls as HTTP statuses. Pure.
//!
//! The body is the error's sentence. The header [`ERRNO_HEADER`] names the errno for programs.

use cwasi_abi::Errno;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::response_body::ResponseBody;
use crate::modes::CallError;

/// Header with the errno's name.
pub const ERRNO_HEADER: HeaderName = HeaderName::from_static("cwasi-errno");
/// Seconds after which a client may try again, when there was no room.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// The status of a call that ended with this errno.
#[must_use]
pub const fn status_of(errno: Errno) -> StatusCode {
    match errno {
        Errno::InvalidArgument => StatusCode::BAD_REQUEST,
        Errno::NoSuchFunction => StatusCode::NOT_FOUND,
        Errno::Refused => StatusCode::FORBIDDEN,
        Errno::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Errno::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        Errno::Trapped | Errno::Broken => StatusCode::BAD_GATEWAY,
        Errno::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Errno::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        Errno::NotAvailable => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The response of a call that failed.
#[must_use]
pub fn failed(error: &CallError) -> Response<ResponseBody> {
    let errno = error.errno();
    let mut response = sentence(status_of(errno), &error.to_string());
    if let Ok(name) = HeaderValue::from_str(errno.name()) {
        response.headers_mut().insert(ERRNO_HEADER, name);
    }
    response
}

/// True if a response says that there is no such function, or no such name.
#[must_use]
pub fn names_no_function(response: &Response<ResponseBody>) -> bool {
    let errno = response.headers().get(ERRNO_HEADER).map(HeaderValue::as_bytes);
    [Errno::NoSuchFunction, Errno::InvalidArgument]
        .iter()
        .any(|none| errno == Some(none.name().as_bytes()))
}

/// A response whose body is one sentence.
#[must_use]
pub fn sentence(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let body = format!("{text}\n");
    let mut response = Response::new(ResponseBody::Whole(Full::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.insert(RETRY_AFTER, RETRY_AFTER_S);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/http.md");

    #[test]
    fn the_page_has_every_errno_with_its_status() {
        for errno in Errno::ALL {
            let row = format!("| {} | `{}` |", status_of(errno).as_u16(), errno.name());
            // The others are a guest's own: no call ends with them.
            let ends_calls = status_of(errno) != StatusCode::INTERNAL_SERVER_ERROR
                || matches!(errno, Errno::Failed | Errno::Internal);
            assert!(!ends_calls || PAGE.contains(&row), "docs/http.md lacks {row}");
        }
    }

    #[test]
    fn who_may_try_again_is_told_when() {
        let busy = sentence(StatusCode::TOO_MANY_REQUESTS, "busy");
        assert_eq!(busy.headers()[RETRY_AFTER], "1");
        let missing = failed(&CallError::NoSuchFunction { message: "none".to_owned() });
        assert!(missing.headers().get(RETRY_AFTER).is_none());
        assert_eq!(missing.headers()[ERRNO_HEADER], Errno::NoSuchFunction.name());
    }
}
