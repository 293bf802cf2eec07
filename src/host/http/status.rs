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
use cwasi_wire::ids::CallId;

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
        Errno::Broken => StatusCode::BAD_GATEWAY,
        Errno::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Errno::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        Errno::NotAvailable => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The status of a call that ended with this error, when the request was within the function's limits.
#[must_use]
pub fn status_of_call(error: &CallError) -> StatusCode {
    match error {
        // Another instance takes less.
        CallError::TooLarge(cause) if cause.is_head() => {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        }
        // So it is the response that is not.
        CallError::TooLarge(_) | CallError::Undeliverable { .. } => StatusCode::BAD_GATEWAY,
        other => status_of(other.errno()),
    }
}

/// What a client reads of the call `id` that failed. An error, an exception and a crash of a function are one to it:
/// their text may have secrets of the operator, who finds it in the log.
#[must_use]
pub fn client_text(error: &CallError, id: CallId) -> String {
    match error {
        CallError::Undeliverable { .. } => {
            format!(
                "the function's response cannot be delivered: its log says why, under the id {id}"
            )
        }
        _ if matches!(error.errno(), Errno::Failed | Errno::Trapped) => {
            format!("the function failed: its log says why, under the id {id}")
        }
        _ => sentence_of(error.errno()).to_owned(),
    }
}

/// What a client reads of a call that ended with this errno.
#[must_use]
pub const fn sentence_of(errno: Errno) -> &'static str {
    match errno {
        Errno::InvalidArgument => {
            "this is no function's name, or the function takes no single calls"
        }
        Errno::NoSuchFunction => "no function of this name takes HTTP calls here",
        Errno::Refused => "the function does not take calls from here",
        Errno::Timeout => "the function did not answer in time",
        Errno::Overloaded => "the function is busy: try again later",
        Errno::Failed => "the function failed",
        Errno::Trapped => "the function crashed",
        Errno::PayloadTooLarge => "the request or the response is larger than the function allows",
        Errno::Unreachable => "the function cannot be reached and has not run: try again later",
        Errno::Broken => "the function was lost while it ran",
        Errno::NotAvailable => "this is not available here",
        _ => "a fault of the host",
    }
}

/// The response of a call that failed.
#[must_use]
pub fn failed(error: &CallError, id: CallId) -> Response<ResponseBody> {
    let errno = error.errno();
    let mut response = sentence(status_of(errno), &client_text(error, id));
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
    use cwasi_modes::causes::TooLarge;

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
    fn a_functions_output_is_for_operators_and_its_ends_are_one_to_clients() {
        let id = CallId([0x1a; 16]);
        let message = || "f: exit code 1; end of its stderr: password".to_owned();
        let ends = [
            CallError::CommandFailed { message: message() },
            CallError::Failed { message: message() },
            CallError::Trapped { message: message() },
        ];
        for error in ends {
            let text = client_text(&error, id);
            assert_eq!(
                (status_of_call(&error).as_u16(), text),
                (500, format!("the function failed: its log says why, under the id {id}"))
            );
        }
        let error = CallError::Undeliverable { message: message() };
        assert_eq!(status_of_call(&error).as_u16(), 502);
        assert!(!client_text(&error, id).contains("password"));
    }

    #[test]
    fn what_is_too_large_is_the_head_or_the_response() {
        let head = TooLarge::Head { target: "f".to_owned(), length: 2, limit: 1 };
        let head = CallError::from(head);
        // As another process says it.
        let remote = CallError::from_wire(head.outcome(), head.wire_message(), "f");
        for error in [head, remote] {
            assert_eq!(status_of_call(&error).as_u16(), 431, "{error}");
        }
        assert_eq!(status_of_call(&CallError::too_large("response of f", 2, 1)).as_u16(), 502);
    }

    #[test]
    fn who_may_try_again_is_told_when() {
        let busy = sentence(StatusCode::TOO_MANY_REQUESTS, "busy");
        assert_eq!(busy.headers()[RETRY_AFTER], "1");
        let missing = CallError::NoSuchFunction { message: "none".to_owned() };
        let missing = failed(&missing, CallId([1; 16]));
        assert!(missing.headers().get(RETRY_AFTER).is_none());
        assert_eq!(missing.headers()[ERRNO_HEADER], Errno::NoSuchFunction.name());
    }
}
