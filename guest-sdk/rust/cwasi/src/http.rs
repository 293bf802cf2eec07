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
use crate::context::value;
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

/// The value of a header; empty if the request has none of this name. Several values are joined by `, `.
#[must_use]
pub fn header(name: &str) -> String {
    value(&format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase()))
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
    set(key::HTTP_STATUS, &status.to_string())
}

/// Sets a header of the response; an empty value removes it. Callers that did not come by HTTP ignore it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a name or value that HTTP does not allow, and for headers that belong to the
/// connection or the framing; [`ErrorKind::PayloadTooLarge`] for too many or too long ones.
pub fn set_header(name: &str, value: &str) -> Result<(), ErrorKind> {
    set(&format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase()), value)
}

/// Adds a header to the response, beside others of the same name, as `set-cookie` and `link` need it. The value may be
/// empty. Callers that did not come by HTTP ignore it. The module needs a runtime that has `context_add`.
///
/// # Errors
/// As [`set_header`].
pub fn add_header(name: &str, value: &str) -> Result<(), ErrorKind> {
    let key = format!("{}{}", key::HTTP_HEADER, name.to_ascii_lowercase());
    ended(imports::context_add(&key, value))
}

fn set(key: &str, value: &str) -> Result<(), ErrorKind> {
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
    }
}
