//! Calls another function and waits for it.

use std::fmt;
use std::ops::Deref;

use crate::ErrorKind;
use crate::block::Block;
use crate::imports;

/// Calls the function `target` with `payload` and waits for its response.
///
/// `target` is a function's name (`cwasi.function`) in the caller's own namespace. The runtime chooses how the bytes
/// travel. The call ends at this invocation's deadline at the latest.
///
/// # Errors
/// [`CallError::kind`] gives the kind of the error, its message a text for people.
///
/// # Example
/// ```
/// # fn example() -> Result<(), cwasi::CallError> {
/// let greeting = cwasi::call("greeter", b"Ada")?;
/// println!("{}", String::from_utf8_lossy(&greeting));
/// # Ok(()) }
/// ```
pub fn call(target: &str, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    ended(imports::request_dispatcher(target, payload), receive)
}

/// Like [`call`], but does not copy a large response: it is mapped into this function's memory.
///
/// # Errors
/// As [`call`].
pub fn call_in_place(target: &str, payload: &[u8]) -> Result<Response, CallError> {
    ended(imports::request_dispatcher(target, payload), receive_in_place)
}

/// Like [`call`], for a call that may run twice without harm. If it is unknown whether the callee ran
/// ([`ErrorKind::Broken`]), calls again, by any route, [`CALLS_MAX`] times in all.
///
/// # Errors
/// The error of the last call, as for [`call`].
pub fn call_idempotent(target: &str, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    until_known(|| call(target, payload))
}

/// Most calls of one [`call_idempotent`].
pub const CALLS_MAX: u32 = 4;

fn until_known<R>(mut call: impl FnMut() -> Result<R, CallError>) -> Result<R, CallError> {
    for _ in 1..CALLS_MAX {
        match call() {
            Err(unknown) if unknown.kind == ErrorKind::Broken => {}
            known => return known,
        }
    }
    call()
}

/// Queues a message of at most 1 MiB for the function `target`, without waiting for its handler.
///
/// After `Ok`, the message is stored and will be handled at least once, also if no instance of `target` runs yet. It
/// needs a node with Redis.
///
/// # Errors
/// [`ErrorKind::NotAvailable`] without Redis. After [`ErrorKind::Broken`] and [`ErrorKind::Timeout`] the message may
/// be stored, after any other error it is not.
///
/// # Example
/// ```
/// # fn example() -> Result<(), cwasi::CallError> {
/// cwasi::emit("audit", b"camera 7 was moved")?;
/// # Ok(()) }
/// ```
pub fn emit(target: &str, payload: &[u8]) -> Result<(), CallError> {
    ended(imports::emit(target, payload), receive).map(drop)
}

pub(crate) fn ended<R: Default + Deref<Target = [u8]>>(
    (kind, outcome): (ErrorKind, cwasi_abi::Outcome),
    receive: impl Fn(u32, usize) -> Result<R, CallError>,
) -> Result<R, CallError> {
    let received = match outcome.handle {
        0 => Ok(R::default()),
        handle => receive(handle, usize::try_from(outcome.length).unwrap_or(usize::MAX)),
    };
    if kind == ErrorKind::Ok {
        return received;
    }
    let message = received
        .map_or_else(|lost| lost.message, |bytes| String::from_utf8_lossy(&bytes).into_owned());
    Err(CallError { kind, message })
}

fn receive(handle: u32, length: usize) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(length).is_err() {
        return Err(no_room(handle, length));
    }
    match imports::response_read(handle, length, &mut bytes) {
        ErrorKind::Ok => Ok(bytes),
        kind => Err(unreadable(kind)),
    }
}

pub(crate) fn receive_in_place(handle: u32, length: usize) -> Result<Response, CallError> {
    match imports::response_block(handle, length) {
        Some(Ok(block)) => Ok(Response(Some(block))),
        Some(Err(kind)) => Err(unreadable(kind)),
        None => Err(no_room(handle, length)),
    }
}

fn no_room(handle: u32, length: usize) -> CallError {
    imports::response_drop(handle);
    CallError {
        kind: ErrorKind::PayloadTooLarge,
        message: format!("the response of {length} bytes does not fit into this function's memory"),
    }
}

fn unreadable(kind: ErrorKind) -> CallError {
    CallError { kind, message: "the response cannot be read".to_owned() }
}

/// A response, in the memory where it arrived.
#[derive(Default)]
pub struct Response(Option<Block>);

impl Deref for Response {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<Response> for Vec<u8> {
    /// Copies a mapped response.
    fn from(response: Response) -> Self {
        response.0.map(Block::into_vec).unwrap_or_default()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A failed call.
#[derive(Clone, PartialEq, Eq)]
pub struct CallError {
    kind: ErrorKind,
    message: String,
}

impl CallError {
    pub(crate) const fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    /// The kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A text for people: the callee's own message, or what the runtime looked for and where.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if the callee certainly did not run, so that calling again is safe.
    #[must_use]
    pub const fn retry_is_safe(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::NoSuchFunction | ErrorKind::Overloaded | ErrorKind::Unreachable
        )
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, message) = (self.kind.to_string(), self.message.as_str());
        // A handler that passes on the error of its own call has said the kind.
        let is_said = message.strip_prefix(&kind).is_some_and(|rest| rest.starts_with(':'));
        match message {
            "" => f.write_str(&kind),
            message if is_said => f.write_str(message),
            message => write!(f, "{kind}: {message}"),
        }
    }
}

/// As `Display`, because a `main` that returns the error prints it.
impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_ends_are_retried_a_few_times() {
        let ends = |kinds: &[ErrorKind]| {
            let mut kinds = kinds.iter();
            let mut calls = 0;
            let end = until_known(|| {
                calls += 1;
                match kinds.next() {
                    Some(&kind) => Err(CallError { kind, message: String::new() }),
                    None => Ok(()),
                }
            });
            (calls, end.map_err(|error| error.kind))
        };
        assert_eq!(ends(&[]), (1, Ok(())));
        assert_eq!(ends(&[ErrorKind::Broken, ErrorKind::Broken]), (3, Ok(())));
        assert_eq!(ends(&[ErrorKind::Broken, ErrorKind::Failed]), (2, Err(ErrorKind::Failed)));
        assert_eq!(ends(&[ErrorKind::Timeout]), (1, Err(ErrorKind::Timeout)));
        assert_eq!(ends(&[ErrorKind::Broken; 9]), (CALLS_MAX, Err(ErrorKind::Broken)));
    }

    #[test]
    fn a_kind_is_said_once() {
        let error = |message: &str| CallError { kind: ErrorKind::Failed, message: message.into() };
        let passed_on = error(&error("oops").to_string());
        assert_eq!(
            (error("oops").to_string(), passed_on.to_string()),
            ("failed: oops".into(), "failed: oops".into())
        );
        assert_eq!(error("failed").to_string(), "failed: failed");
        assert_eq!(error("").to_string(), "failed");
    }

    #[test]
    fn without_a_host_calls_are_not_available() {
        let error = call("greeter", b"").expect_err("there is no host here");
        assert_eq!(error.kind(), ErrorKind::NotAvailable);
        assert_eq!(error.to_string(), "not available");
    }
}
