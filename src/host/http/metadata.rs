//! The head of a request as the function reads it by `context_get`, and what it set by `context_set` and `context_add` as the
//! head of the response. Pure.

use cwasi_abi::response_head::is_settable;
use cwasi_abi::{METADATA_ENTRIES_MAX, METADATA_MAX, METADATA_OVERHEAD, context_key};
use hyper::header::{CONNECTION, COOKIE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request;
use hyper::{Response, StatusCode};

use super::HEAD_MAX;
use super::response_body::ResponseBody;
use super::status::sentence;
use cwasi_wire::envelope::Metadata;

/// Headers of this connection, which a function neither needs nor may trust (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a function reads of a request's head. `path` is what follows its name.
///
/// # Errors
/// The response when the head is too long.
pub(super) fn of_request(
    head: &request::Parts,
    path: &str,
) -> Result<Vec<Metadata>, Box<Response<ResponseBody>>> {
    let mut metadata = vec![
        Metadata::of(context_key::HTTP_METHOD, head.method.as_str()),
        Metadata::of(context_key::HTTP_PATH, path),
        Metadata::of(context_key::HTTP_QUERY, head.uri.query().unwrap_or_default()),
    ];
    let target = length(&metadata);
    let named = connection_options(&head.headers);
    for name in head.headers.keys() {
        if HOP_BY_HOP.contains(&name.as_str()) || named.iter().any(|option| option == name.as_str())
        {
            continue;
        }
        let key = [context_key::HTTP_HEADER, name.as_str()].concat();
        metadata.push(Metadata::of(key, joined(&head.headers, name)));
    }
    let bytes = length(&metadata);
    if bytes <= HEAD_MAX {
        return Ok(metadata);
    }
    let (status, what) = if target > HEAD_MAX {
        (StatusCode::URI_TOO_LONG, "path and query")
    } else {
        (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "path, query and headers")
    };
    let text =
        format!("{what} need {bytes} bytes on their way to the function, {HEAD_MAX} is the most");
    Err(Box::new(sentence(status, &text)))
}

/// Headers that `Connection` names: they end here, too (RFC 9110, 7.6.1).
fn connection_options(headers: &HeaderMap) -> Vec<String> {
    let options = joined(headers, &CONNECTION);
    options.split(',').map(|option| option.trim().to_ascii_lowercase()).collect()
}

fn length(metadata: &[Metadata]) -> usize {
    metadata.iter().map(|pair| pair.key.len() + pair.value.len() + METADATA_OVERHEAD).sum()
}

/// All values of a header, as one.
pub(super) fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let separator = if name == COOKIE { "; " } else { ", " };
    let values = headers.get_all(name).iter();
    let mut values = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let mut joined = values.next().unwrap_or_default().into_owned();
    for value in values {
        joined.push_str(separator);
        joined.push_str(&value);
    }
    joined
}

/// The status and headers that a function set, 200 if none. What `context_set` refuses is left out here, too: a
/// compromised callee that sets `content-length` or the status 101 would write a second response into the connection.
/// So is what exceeds the bounds of `context_set`.
#[must_use]
pub fn head_of(metadata: &[Metadata]) -> (StatusCode, HeaderMap) {
    let (mut status, mut headers) = (StatusCode::OK, HeaderMap::new());
    for Metadata { key, value, .. } in within_bounds(metadata) {
        if !is_settable(key, value) {
            continue;
        }
        if key == context_key::HTTP_STATUS {
            status = StatusCode::from_bytes(value.as_bytes()).unwrap_or(status);
        } else if let Some(name) = key.strip_prefix(context_key::HTTP_HEADER)
            && let Ok(name) = HeaderName::try_from(name)
            && let Ok(value) = HeaderValue::try_from(value)
        {
            headers.append(name, value);
        }
    }
    (status, headers)
}

/// The first pairs, as many as `context_set` takes.
fn within_bounds(metadata: &[Metadata]) -> impl Iterator<Item = &Metadata> {
    let mut bytes = 0;
    metadata.iter().take(METADATA_ENTRIES_MAX).take_while(move |pair| {
        bytes += pair.key.len() + pair.value.len() + METADATA_OVERHEAD;
        bytes <= METADATA_MAX
    })
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn head(request: request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn value(metadata: &[Metadata], key: &str) -> Option<String> {
        metadata.iter().find(|pair| pair.key == key).map(|pair| pair.value.clone())
    }

    #[test]
    fn the_head_of_a_request_is_its_context() {
        let request = Request::put("/function/f/a/b?x=1&y").header("Accept", "a");
        let request = request.header("accept", "b").header("cookie", "c=1").header("cookie", "d=2");
        let metadata = of_request(&head(request), "/a/b").unwrap();
        for (key, expected) in [
            ("http.method", "PUT"),
            ("http.path", "/a/b"),
            ("http.query", "x=1&y"),
            ("http.header.accept", "a, b"),
            ("http.header.cookie", "c=1; d=2"),
        ] {
            assert_eq!(value(&metadata, key).as_deref(), Some(expected), "{key}");
        }
    }

    #[test]
    fn headers_of_the_connection_end_here() {
        let request = Request::get("/").header("connection", "close, X-Private").header("te", "x");
        let request = request.header("x-private", "y").header("x-public", "z");
        let metadata = of_request(&head(request), "/").unwrap();
        assert_eq!(value(&metadata, "http.header.x-public").as_deref(), Some("z"));
        for name in ["connection", "te", "x-private"] {
            assert_eq!(value(&metadata, &format!("http.header.{name}")), None, "{name}");
        }
    }

    #[test]
    fn a_head_that_fits_into_no_envelope_is_refused() {
        let long = "x".repeat(HEAD_MAX);
        let status = |request| of_request(&head(request), "/").unwrap_err().status();
        let headers = status(Request::get("/").header("a", &long));
        assert_eq!(headers, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(status(Request::get(format!("/?{long}"))), StatusCode::URI_TOO_LONG);
    }

    #[test]
    fn the_response_gets_what_the_function_set() {
        let set = [
            ("http.status", "201"),
            ("http.header.content-type", "text/html"),
            ("http.header.a b", "x"),
            ("later", "x"),
        ];
        let (status, headers) = head_of(&set.map(|(key, value)| Metadata::of(key, value)));
        assert_eq!((status, headers.len()), (StatusCode::CREATED, 1));
        assert_eq!(headers["content-type"], "text/html");
        assert_eq!(head_of(&[]), (StatusCode::OK, HeaderMap::new()));
    }

    #[test]
    fn every_value_of_a_header_arrives_in_its_order() {
        let set = [
            ("http.header.set-cookie", "a=1"),
            ("http.header.empty", ""),
            ("http.header.set-cookie", "b=2"),
            ("http.header.location", "/é"),
        ];
        let (_, headers) = head_of(&set.map(|(key, value)| Metadata::of(key, value)));
        let cookies = headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap());
        assert_eq!(cookies.collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert_eq!(
            (headers["empty"].as_bytes(), headers["location"].as_bytes()),
            (&b""[..], "/é".as_bytes())
        );
    }

    #[test]
    fn a_callee_sets_no_more_than_its_guest_may() {
        let set = |count: usize, length: usize| {
            let pairs = (0..count).map(|number| {
                Metadata::of(format!("http.header.x-{number:04}"), "v".repeat(length))
            });
            head_of(&pairs.collect::<Vec<_>>()).1.len()
        };
        assert_eq!(set(METADATA_ENTRIES_MAX, 1), METADATA_ENTRIES_MAX);
        assert_eq!(set(2 * METADATA_ENTRIES_MAX, 1), METADATA_ENTRIES_MAX);
        let key = "http.header.x-0000".len() + METADATA_OVERHEAD;
        assert_eq!(set(1, METADATA_MAX - key), 1);
        assert_eq!(set(1, METADATA_MAX - key + 1), 0);
        assert_eq!(set(5, METADATA_MAX / 4 - key), 4);
    }

    #[test]
    fn a_callee_cannot_write_another_response() {
        for (key, value) in [
            ("http.header.content-length", "0"),
            ("http.header.transfer-encoding", "chunked"),
            ("http.header.connection", "close"),
            ("http.header.upgrade", "h2c"),
            ("http.header.trailer", "x"),
            ("http.header.x-call-id", "1"),
            ("http.header.cwasi-errno", "timeout"),
            ("http.header.x", "a\r\nb: c"),
            ("http.header.Content-Length", "0"),
            ("http.status", "100"),
            ("http.status", "101"),
            ("http.status", "199"),
            ("http.status", "600"),
            ("http.status", "999"),
        ] {
            let head = head_of(&[Metadata::of(key, value)]);
            assert_eq!(head, (StatusCode::OK, HeaderMap::new()), "{key}: {value}");
        }
    }
}
