//! Types of handlers and of their results.

use std::fmt::{self, Display};
use std::ops::Deref;

use crate::block::Block;
use crate::parts::Parts;
use crate::region::{Region, SealedRegion};

/// A function that answers calls. `Input` only distinguishes the implementations.
pub trait Handler<Input> {
    /// True if it takes its payload as a vector, which cannot own mapped pages.
    const OWNS: bool;

    /// Runs it once.
    ///
    /// # Errors
    /// The message that the caller gets.
    fn run(&self, payload: Payload) -> Result<Body, String>;
}

/// A received payload. Only the host makes it, and it ends with [`Handler::run`].
#[derive(Default)]
pub struct Payload(Received);

/// Where a payload is.
#[derive(Default)]
enum Received {
    #[default]
    Empty,
    /// In the module's buffer for short payloads, until the handler returns.
    Buffered(&'static [u8]),
    Owned(Block),
}

impl Payload {
    pub(crate) const fn new(block: Block) -> Self {
        Self(Received::Owned(block))
    }

    /// `bytes` do not change until the handler returns, which drops this.
    pub(crate) const fn buffered(bytes: &'static [u8]) -> Self {
        Self(Received::Buffered(bytes))
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Received::Empty => &[],
            Received::Buffered(bytes) => bytes,
            Received::Owned(block) => block,
        }
    }
}

impl From<Payload> for Vec<u8> {
    fn from(payload: Payload) -> Self {
        match payload.0 {
            Received::Empty => Self::new(),
            Received::Buffered(bytes) => bytes.to_vec(),
            Received::Owned(block) => block.into_vec(),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<F, R> Handler<&[u8]> for F
where
    F: Fn(&[u8]) -> R,
    R: IntoResponse,
{
    const OWNS: bool = false;

    fn run(&self, payload: Payload) -> Result<Body, String> {
        self(&payload).into_response()
    }
}

impl<F, R> Handler<Vec<u8>> for F
where
    F: Fn(Vec<u8>) -> R,
    R: IntoResponse,
{
    const OWNS: bool = true;

    fn run(&self, payload: Payload) -> Result<Body, String> {
        self(payload.into()).into_response()
    }
}

impl<F, R> Handler<Parts<'_>> for F
where
    F: Fn(Parts<'_>) -> R,
    R: IntoResponse,
{
    const OWNS: bool = false;

    fn run(&self, payload: Payload) -> Result<Body, String> {
        let parts = Parts::decode(&payload).map_err(|error| error.to_string())?;
        self(parts).into_response()
    }
}

/// A response to send.
#[derive(Debug)]
pub enum Body {
    /// Ordinary memory, copied by the host.
    Bytes(Vec<u8>),
    /// Sent without a copy.
    Region(SealedRegion),
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Region(region) => region,
        }
    }
}

/// Types that a handler can return.
pub trait IntoResponse {
    /// The response's bytes.
    ///
    /// # Errors
    /// The message that the caller gets.
    fn into_response(self) -> Result<Body, String>;
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Result<Body, String> {
        Ok(Body::Bytes(self))
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Result<Body, String> {
        Ok(Body::Bytes(self.into_bytes()))
    }
}

impl IntoResponse for Region {
    fn into_response(self) -> Result<Body, String> {
        Ok(Body::Region(self.seal()))
    }
}

impl IntoResponse for SealedRegion {
    fn into_response(self) -> Result<Body, String> {
        Ok(Body::Region(self))
    }
}

impl IntoResponse for () {
    fn into_response(self) -> Result<Body, String> {
        Ok(Body::Bytes(Vec::new()))
    }
}

impl<T: IntoResponse, E: Display> IntoResponse for Result<T, E> {
    fn into_response(self) -> Result<Body, String> {
        self.map_err(|error| error.to_string()).and_then(IntoResponse::into_response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<I>(handler: impl Handler<I>, payload: &[u8]) -> Result<Vec<u8>, String> {
        handler.run(Payload::new(Block::of(payload))).map(|body| body.to_vec())
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

    fn in_a_region(payload: &[u8]) -> Region {
        let mut region = Region::with_len(payload.len());
        region.copy_from_slice(payload);
        region
    }

    fn nothing(_: &[u8]) {}

    fn merges(parts: Parts<'_>) -> Vec<u8> {
        parts.iter().flat_map(|part| part.bytes).copied().collect()
    }

    #[test]
    fn every_shape_of_handler() {
        assert_eq!(run(borrows, b"7"), Ok(vec![7]));
        assert_eq!(run(borrows, b"x"), Err("invalid digit found in string".into()));
        assert_eq!(run(owns, b"ab"), Ok(b"ab".to_vec()));
        assert_eq!(run(text, b"ab"), Ok(b"2 bytes".to_vec()));
        assert_eq!(run(in_a_region, b"ab"), Ok(b"ab".to_vec()));
        assert_eq!(run(nothing, b"ab"), Ok(vec![]));
        let block = crate::parts_block(2, &[(0, b"ab"), (1, b"c")]);
        assert_eq!(run(merges, &block), Ok(b"abc".to_vec()));
        assert!(run(merges, b"ab").unwrap_err().contains("cwasi.fan-in"));
        assert_eq!(owns.run(Payload::buffered(b"ab")).unwrap().to_vec(), b"ab");
        let large = vec![3; 100_000];
        assert_eq!(run(in_a_region, &large), Ok(large.clone()));
        assert_eq!(run(owns, &large), Ok(large));
    }
}
