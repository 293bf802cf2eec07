//! Errors of calls as HTTP statuses. Pure.
//!
//! The body says what a client can do. It has no path, instance, annotation or node of the operator's: those are in the
//! log, under the call's id. The header [`ERRNO_HEADER`] names the errno for programs.

use cwasi_abi::Errno;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

use super::response_body::ResponseBody;
use cwasi_modes::CallError;

/// Header with the errno's name.
pub const ERRNO_HEADER: HeaderName = HeaderName::from_static("cwasi-errno");
/// Seconds after which a client may try again, when there was no room.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// What a client reads of a command that ended with an error; its output may have secrets of its operator.
const COMMAND_FAILED: &str =
    "the function ended with an error: the log has its output, under the id of this call";

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

/// What a client reads of a call that failed. A function's own error is its answer.
#[must_use]
pub fn client_text(error: &CallError) -> &str {
    match error.errno() {
        Errno::InvalidArgument => {
            "this is no function's name, or the function takes no single calls"
        }
        Errno::NoSuchFunction => "no function of this name takes HTTP calls here",
        Errno::Refused => "the function does not take calls from here",
        Errno::Timeout => "the function did not answer in time",
        Errno::Overloaded => "the function is busy: try again later",
        Errno::Trapped => "the function crashed",
        Errno::PayloadTooLarge => "the request or the response is larger than the function allows",
        Errno::Unreachable => "the function cannot be reached and has not run: try again later",
        Errno::Broken => "the function was lost while it ran",
        Errno::NotAvailable => "this is not available here",
        Errno::Failed => match error {
            CallError::Failed { message } => message,
            CallError::CommandFailed { .. } => COMMAND_FAILED,
            _ => "the function failed",
        },
        _ => "a fault of the host",
    }
}

/// The response of a call that failed; its header names the id that its sentence speaks of.
#[must_use]
pub fn failed(error: &CallError) -> Response<ResponseBody> {
    let errno = error.errno();
    let mut response = sentence(status_of(errno), client_text(error));
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

#[must_use]
pub fn sentence(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let body = format!("{text}\n");
    let mut response = Response::new(ResponseBody::Whole(Full::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
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
    fn a_commands_output_is_for_operators() {
        let message = "f: exit code 1; end of its stderr: password".to_owned();
        assert!(!client_text(&CallError::CommandFailed { message }).contains("password"));
        assert_eq!(client_text(&CallError::Failed { message: "no wheels".into() }), "no wheels");
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
