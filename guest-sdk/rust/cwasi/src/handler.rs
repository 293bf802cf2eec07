//! What can be a handler, and what it can return.

use std::fmt::Display;

/// A function that answers calls. `Input` only tells the two shapes apart.
pub trait Handler<Input> {
    /// Runs it once.
    ///
    /// # Errors
    /// The message that the caller gets.
    fn run(&self, payload: Vec<u8>) -> Result<Vec<u8>, String>;
}

impl<F, R> Handler<&[u8]> for F
where
    F: Fn(&[u8]) -> R,
    R: IntoResponse,
{
    fn run(&self, payload: Vec<u8>) -> Result<Vec<u8>, String> {
        self(&payload).into_response()
    }
}

impl<F, R> Handler<Vec<u8>> for F
where
    F: Fn(Vec<u8>) -> R,
    R: IntoResponse,
{
    fn run(&self, payload: Vec<u8>) -> Result<Vec<u8>, String> {
        self(payload).into_response()
    }
}

/// What a handler can return.
pub trait IntoResponse {
    /// The response's bytes.
    ///
    /// # Errors
    /// The message that the caller gets.
    fn into_response(self) -> Result<Vec<u8>, String>;
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Result<Vec<u8>, String> {
        Ok(self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Result<Vec<u8>, String> {
        Ok(self.into_bytes())
    }
}

impl IntoResponse for () {
    fn into_response(self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }
}

impl<T: IntoResponse, E: Display> IntoResponse for Result<T, E> {
    fn into_response(self) -> Result<Vec<u8>, String> {
        self.map_err(|error| error.to_string()).and_then(IntoResponse::into_response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<I>(handler: impl Handler<I>, payload: &[u8]) -> Result<Vec<u8>, String> {
        handler.run(payload.to_vec())
    }

    fn borrows(payload: &[u8]) -> Result<Vec<u8>, std::num::ParseIntError> {
        let number: u8 = String::from_utf8_lossy(payload).parse()?;
        Ok(vec![number])
    }

    fn owns(payload: Vec<u8>) -> Vec<u8> {
        payload
    }

    fn text(payload: &[u8]) -> String {
        format!("{} bytes", payload.len())
    }

    fn nothing(_: &[u8]) {}

    #[test]
    fn every_shape_of_handler() {
        assert_eq!(run(borrows, b"7"), Ok(vec![7]));
        assert_eq!(run(borrows, b"x"), Err("invalid digit found in string".into()));
        assert_eq!(run(owns, b"ab"), Ok(b"ab".to_vec()));
        assert_eq!(run(text, b"ab"), Ok(b"2 bytes".to_vec()));
        assert_eq!(run(nothing, b"ab"), Ok(vec![]));
    }
}
