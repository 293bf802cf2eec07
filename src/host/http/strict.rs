//! Requests that hyper accepts and that two servers could read in two ways. Pure.
//!
//! hyper refuses contradicting lengths and malformed heads. It also takes a single line feed for the end of a line, as
//! RFC 9112 (2.2) allows.

use hyper::header::{CONNECTION, EXPECT, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode, Version};

use super::metadata::joined;

/// Why a request is not served: status and sentence.
pub(super) type Refusal = (StatusCode, &'static str);

/// Checks a request's head.
///
/// # Errors
/// The response.
pub(super) fn check<B>(request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Err((StatusCode::NOT_IMPLEMENTED, "this is no proxy: CONNECT is not served"));
    }
    let hosts = headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        // RFC 9112, 3.2.
        return Err((StatusCode::BAD_REQUEST, "a request needs one Host header"));
    }
    let names_user = |it: &Authority| it.as_str().contains('@');
    if !headers.get(HOST).is_none_or(is_host) || request.uri().authority().is_some_and(names_user) {
        // RFC 9110, 4.2.4 and 7.2: another server may read what is before or after the `@`.
        return Err((
            StatusCode::BAD_REQUEST,
            "the Host header is a name or an address with a port",
        ));
    }
    if headers.get_all(TRANSFER_ENCODING).iter().nth(1).is_some() {
        return Err((StatusCode::BAD_REQUEST, "a request has one Transfer-Encoding header"));
    }
    let codings = headers.get_all(TRANSFER_ENCODING).iter();
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        // RFC 9112, 6.1.
        return Err((StatusCode::NOT_IMPLEMENTED, "the only transfer coding is chunked"));
    }
    let expectations = headers.get_all(EXPECT).iter();
    if expectations.into_iter().any(|it| !it.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        // RFC 9110, 10.1.1.
        return Err((
            StatusCode::EXPECTATION_FAILED,
            "the only expectation that is met is 100-continue",
        ));
    }
    if asks_for_websocket(headers) {
        return Err((StatusCode::NOT_IMPLEMENTED, "functions have no WebSockets"));
    }
    Ok(())
}

/// True for `NAME`, `NAME:PORT` and the empty value of a request without a host.
fn is_host(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    bytes.is_empty() || (!bytes.contains(&b'@') && Authority::try_from(bytes).is_ok())
}

fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let has = |list: String, word| list.split(',').any(|it| it.trim().eq_ignore_ascii_case(word));
    has(joined(headers, &CONNECTION), "upgrade") && has(joined(headers, &UPGRADE), "websocket")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(&str, &str)], version: Version) -> u16 {
        let mut request = Request::get("/").version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap()).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn one_host_one_coding_and_no_upgrade() {
        let host = ("host", "x");
        for (expected, headers) in [
            (200, &[host][..]),
            (400, &[]),
            (400, &[host, host]),
            (400, &[host, ("host", "y")]),
            (200, &[host, ("transfer-encoding", "Chunked")]),
            (501, &[host, ("transfer-encoding", "gzip, chunked")]),
            (400, &[host, ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")]),
            (400, &[host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")]),
            (400, &[("host", "evil@good")]),
            (400, &[("host", "good/evil")]),
            (200, &[("host", "")]),
            (200, &[("host", "[::1]:8080")]),
            (200, &[host, ("expect", "100-Continue")]),
            (417, &[host, ("expect", "100-continue, a-pony")]),
            (400, &[("host", "a b")]),
            (400, &[("host", "[::1")]),
            (400, &[("host", "a:b:c")]),
            (501, &[host, ("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]),
            (200, &[host, ("connection", "upgrade, http2-settings"), ("upgrade", "h2c")]),
        ] {
            assert_eq!(status(headers, Version::HTTP_11), expected, "{headers:?}");
        }
        assert_eq!(status(&[], Version::HTTP_10), 200);
        assert_eq!(status(&[host, host], Version::HTTP_10), 400);
    }

    #[test]
    fn no_proxy_and_no_user_in_the_target() {
        for (expected, method, target) in [
            (501, Method::CONNECT, "good:443"),
            (400, Method::GET, "http://evil@good/"),
            (200, Method::GET, "http://good/@"),
            (200, Method::OPTIONS, "*"),
        ] {
            let request = Request::builder().method(method).uri(target).header(HOST, "good");
            let checked = check(&request.body(()).unwrap());
            let status = checked.map_or_else(|(status, _)| status.as_u16(), |()| 200);
            assert_eq!(status, expected, "{target}");
        }
    }
}
