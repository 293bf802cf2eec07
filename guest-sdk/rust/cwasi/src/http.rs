//! The HTTP request behind an invocation, and the status and headers of its response.
//!
//! The body of the request is the payload, the handler's response the body of the answer.
//!
//! ```
//! #[cwasi::handler]
//! fn page(_payload: Vec<u8>) -> Result<String, String> {
//!     if cwasi::http::path() != "/" {
//!         cwasi::http::set_status(404).map_err(|error| error.to_string())?;
//!     }
//!     cwasi::http::set_header("content-type", "text/html").map_err(|error| error.to_string())?;
//!     Ok(format!("<p>{} {}</p>", cwasi::http::method(), cwasi::http::query()))
//! }
//! # fn main() {}
//! ```

use cwasi_abi::context_key as key;

use crate::ErrorKind;
use crate::context::{value, value_bytes};
use crate::imports;

/// The method, such as `GET`; empty if the call did not come by HTTP.
#[must_use]
pub fn method() -> String {
    value(key::HTTP_METHOD)
}

/// The path behind the function's name, with its `/`; empty if the call did not come by HTTP.
#[must_use]
pub fn path() -> String {
    value(key::HTTP_PATH)
}

/// The query without `?`, as it was sent; empty without one.
#[must_use]
pub fn query() -> String {
    value(key::HTTP_QUERY)
}

/// The value of a header; empty if the request has none of this name. Several values are joined by `, `, and bytes that
/// are no UTF-8 become U+FFFD; [`headers`] has them as they came.
#[must_use]
pub fn header(name: &str) -> String {
    value(&format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase()))
}

/// The request's headers in their order: lower-case names, and values as the client sent them, which need not be UTF-8.
/// A header with several values comes several times. A runtime of the version before joins the values.
#[must_use]
pub fn headers() -> Vec<(String, Vec<u8>)> {
    match value_bytes(key::HTTP_FIELDS) {
        Some(lines) => fields(&lines),
        None => header_names().into_iter().map(one).collect(),
    }
}

/// A header with all of its values.
fn one(name: String) -> (String, Vec<u8>) {
    let value = value_bytes(&[key::HTTP_HEADER, &name].concat()).unwrap_or_default();
    (name, value)
}

/// Lines of `name: value`, without carriage returns and line feeds in values.
fn fields(lines: &[u8]) -> Vec<(String, Vec<u8>)> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let pair = |line: &[u8]| {
        let end = line.windows(2).position(|bytes| bytes == b": ").unwrap_or(line.len());
        let value = line.get(end + 2..).unwrap_or_default().to_vec();
        (String::from_utf8_lossy(&line[..end]).into_owned(), value)
    };
    lines.map(pair).collect()
}

/// The names of the request's headers, lower-case.
#[must_use]
pub fn header_names() -> Vec<String> {
    value(key::HTTP_HEADERS).lines().map(str::to_owned).collect()
}

/// Sets the status of the response, 200 to 599. Callers that did not come by HTTP ignore it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for another number.
pub fn set_status(status: u16) -> Result<(), ErrorKind> {
    set(key::HTTP_STATUS, status.to_string().as_bytes())
}

/// Sets a header of the response; an empty value removes it. The value is text or bytes. Callers that did not come by
/// HTTP ignore it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a name or value that HTTP does not allow, and for headers that belong to the
/// connection or the framing, but for `content-length` in the response to `HEAD`; [`ErrorKind::PayloadTooLarge`] for
/// too many or too long ones.
pub fn set_header(name: &str, value: impl AsRef<[u8]>) -> Result<(), ErrorKind> {
    set(&format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase()), value.as_ref())
}

/// Adds a header to the response, beside others of the same name, as `set-cookie` and `link` need it. The value may be
/// empty. Callers that did not come by HTTP ignore it. The module needs a runtime that has `context_add`.
///
/// # Errors
/// As [`set_header`].
pub fn add_header(name: &str, value: impl AsRef<[u8]>) -> Result<(), ErrorKind> {
    let key = format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase());
    ended(imports::context_add(&key, value.as_ref()))
}

fn set(key: &str, value: &[u8]) -> Result<(), ErrorKind> {
    ended(imports::context_set(key, value))
}

fn ended(errno: ErrorKind) -> Result<(), ErrorKind> {
    match errno {
        ErrorKind::Ok => Ok(()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_guest_there_is_no_request() {
        assert_eq!((method(), header("Accept"), header_names()), Default::default());
        assert_eq!(set_status(200), Err(ErrorKind::NotAvailable));
        assert_eq!(add_header("link", "</a>"), Err(ErrorKind::NotAvailable));
        assert!(headers().is_empty());
    }

    #[test]
    fn headers_keep_order_repetitions_and_bytes() {
        let seen = fields(b"accept: a\nx: \naccept: \xe9: b\n");
        let expected: [(&str, &[u8]); 3] = [("accept", b"a"), ("x", b""), ("accept", b"\xe9: b")];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), value.to_vec())));
    }
}
