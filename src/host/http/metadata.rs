//! The head of a request as the function reads it by `context_get`, and what it set by `context_set` and `context_add` as the
//! head of the response. Pure.

use cwasi_abi::response_head::{is_length_for_head, is_settable};
use cwasi_abi::{METADATA_ENTRIES_MAX, METADATA_MAX, context_key};
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request;
use hyper::{Response, StatusCode};

use super::response_body::ResponseBody;
use super::status::sentence;
use cwasi_wire::envelope::Metadata;
use cwasi_wire::metadata;

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

/// What a function reads of a request's head: one pair for each value of a header, with its bytes. `path` is what
/// follows the function's name.
pub(super) fn of_request(head: &request::Parts, path: &str) -> Vec<Metadata> {
    let mut metadata = vec![
        Metadata::of(context_key::HTTP_METHOD, head.method.as_str()),
        Metadata::of(context_key::HTTP_PATH, path),
        Metadata::of(context_key::HTTP_QUERY, head.uri.query().unwrap_or_default()),
    ];
    let named = connection_options(&head.headers);
    // RFC 9112, 3.2.2: the host of an absolute target counts, not that of the header.
    let target = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    for (name, value) in &head.headers {
        if HOP_BY_HOP.contains(&name.as_str()) || named.iter().any(|option| option == name.as_str())
        {
            continue;
        }
        let value = target.filter(|_| name == HOST).unwrap_or(value.as_bytes());
        metadata.push(Metadata::of([context_key::HTTP_HEADER, name.as_str()].concat(), value));
    }
    metadata
}

/// Checks that a function takes the head of a request, whose metadata has at most `most` bytes.
///
/// # Errors
/// The response.
pub(super) fn check_length(
    metadata: &[Metadata],
    most: usize,
) -> Result<(), Box<Response<ResponseBody>>> {
    let target = metadata.iter().filter(|pair| !pair.key.starts_with(context_key::HTTP_HEADER));
    let is_target = target.map(Metadata::length).sum::<usize>() > most;
    let bytes = metadata::length(metadata);
    if bytes <= most {
        return Ok(());
    }
    let (status, what) = if is_target {
        (StatusCode::URI_TOO_LONG, "path and query")
    } else {
        (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "path, query and headers")
    };
    let text =
        format!("{what} need {bytes} bytes on their way to the function, {most} is the most");
    Err(Box::new(sentence(status, &text)))
}

/// Headers that `Connection` names: they end here, too (RFC 9110, 7.6.1).
fn connection_options(headers: &HeaderMap) -> Vec<String> {
    let options = joined(headers, &CONNECTION);
    options.split(',').map(|option| option.trim().to_ascii_lowercase()).collect()
}

/// All values of a header, as one text.
pub(super) fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let joined = metadata::joined(name.as_str(), values);
    String::from_utf8_lossy(&joined).into_owned()
}

/// The status and headers that a function set, 200 if none. What `context_set` refuses is left out here, too: a
/// compromised callee that sets `content-length` or the status 101 would write a second response into the connection.
/// So is what exceeds the bounds of `context_set`. The response to `HEAD` has the length that the function set.
#[must_use]
pub fn head_of(metadata: &[Metadata], is_head: bool) -> (StatusCode, HeaderMap) {
    let (mut status, mut headers) = (StatusCode::OK, HeaderMap::new());
    for Metadata { key, value, .. } in within_bounds(metadata) {
        let is_length = is_head && is_length_for_head(key, value);
        if !is_settable(key, value) && !is_length {
            continue;
        }
        if key == context_key::HTTP_STATUS {
            status = StatusCode::from_bytes(value).unwrap_or(status);
        } else if let Some(name) = key.strip_prefix(context_key::HTTP_HEADER)
            && let Ok(name) = HeaderName::try_from(name)
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            if is_length {
                headers.insert(name, value);
            } else {
                headers.append(name, value);
            }
        }
    }
    (status, headers)
}

/// The first pairs, as many as `context_set` takes: the status, and headers.
fn within_bounds(metadata: &[Metadata]) -> impl Iterator<Item = &Metadata> {
    let (mut headers, mut bytes) = (0, 0);
    metadata.iter().take_while(move |pair| {
        headers += usize::from(pair.key != context_key::HTTP_STATUS);
        bytes += pair.length();
        headers <= METADATA_ENTRIES_MAX && bytes <= METADATA_MAX
    })
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use cwasi_abi::METADATA_OVERHEAD;

    fn head(request: request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn values(metadata: &[Metadata], key: &str) -> Vec<Vec<u8>> {
        let found = metadata.iter().filter(|pair| pair.key == key);
        found.map(|pair| pair.value.clone()).collect()
    }

    #[test]
    fn the_head_of_a_request_is_its_context() {
        let request = Request::put("/function/f/a/b?x=1&y").header("Accept", "a");
        let request = request.header("accept", "b").header("cookie", "c=1").header("cookie", "d=2");
        let request = request.header("x-bytes", HeaderValue::from_bytes(b"\xe9").unwrap());
        let metadata = of_request(&head(request), "/a/b");
        let expected: [(&str, &[&[u8]]); 6] = [
            ("http.method", &[b"PUT"]),
            ("http.path", &[b"/a/b"]),
            ("http.query", &[b"x=1&y"]),
            ("http.header.accept", &[b"a", b"b"]),
            ("http.header.cookie", &[b"c=1", b"d=2"]),
            ("http.header.x-bytes", &[b"\xe9"]),
        ];
        for (key, expected) in expected {
            assert_eq!(values(&metadata, key), expected, "{key}");
        }
    }

    #[test]
    fn the_host_of_an_absolute_target_counts() {
        let request = Request::get("http://named:80/a").header("host", "other");
        let metadata = of_request(&head(request), "/a");
        assert_eq!(values(&metadata, "http.header.host"), [b"named:80"]);
    }

    #[test]
    fn headers_of_the_connection_end_here() {
        let request = Request::get("/").header("connection", "close, X-Private").header("te", "x");
        let request = request.header("x-private", "y").header("x-public", "z");
        let metadata = of_request(&head(request), "/");
        assert_eq!(values(&metadata, "http.header.x-public"), [b"z"]);
        for name in ["connection", "te", "x-private"] {
            assert!(values(&metadata, &format!("http.header.{name}")).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_head_that_the_function_does_not_take_is_refused() {
        let long = "x".repeat(9000);
        let check = |request, most| check_length(&of_request(&head(request), "/"), most);
        assert!(check(Request::get("/").header("a", &long), 10_000).is_ok());
        let status = |request| check(request, 9000).unwrap_err().status();
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
        let (status, headers) = head_of(&set.map(|(key, value)| Metadata::of(key, value)), false);
        assert_eq!((status, headers.len()), (StatusCode::CREATED, 1));
        assert_eq!(headers["content-type"], "text/html");
        assert_eq!(head_of(&[], false), (StatusCode::OK, HeaderMap::new()));
    }

    #[test]
    fn every_value_of_a_header_arrives_in_its_order() {
        let set = [
            ("http.header.set-cookie", "a=1"),
            ("http.header.empty", ""),
            ("http.header.set-cookie", "b=2"),
            ("http.header.location", "/é"),
        ];
        let (_, headers) = head_of(&set.map(|(key, value)| Metadata::of(key, value)), false);
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
            head_of(&pairs.collect::<Vec<_>>(), false).1.len()
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
            let head = head_of(&[Metadata::of(key, value)], false);
            assert_eq!(head, (StatusCode::OK, HeaderMap::new()), "{key}: {value}");
        }
    }

    #[test]
    fn the_response_to_head_has_one_length() {
        let length = |value| Metadata::of("http.header.content-length", value);
        let (_, headers) = head_of(&[length("7"), length("8"), length("9, 9")], true);
        assert_eq!(headers.get_all("content-length").iter().collect::<Vec<_>>(), ["8"]);
    }

    #[test]
    fn bytes_beyond_ascii_arrive_as_they_are() {
        let (_, headers) = head_of(&[Metadata::of("http.header.location", b"/\xe9")], false);
        assert_eq!(headers["location"].as_bytes(), b"/\xe9");
    }
}
