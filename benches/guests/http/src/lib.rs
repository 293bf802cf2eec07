//! A minimal HTTP/1.1 for two guests, over WasmEdge's own socket extension: messages with a `content-length`,
//! connections kept alive. Runs inside guests under the `wasmedge` command, not under CWASI.

use std::io::{Error, ErrorKind, IoSlice, Read as _, Result};

use wasmedge_wasi_socket::TcpStream;

/// Path at which a payload is read.
pub const TOUCH: &str = "/touch";
/// Path at which it is not.
pub const KEEP: &str = "/keep";

/// Longest head of a message in bytes.
const HEAD_MAX: usize = 4096;
/// Most header fields of a message.
const FIELDS_MAX: usize = 16;

/// A message that arrived.
pub struct Message {
    /// Path of a request; empty for a response.
    pub path: String,
    /// The payload, in fresh memory.
    pub body: Vec<u8>,
}

/// Sends a request or response: its first line without the end of line, and its payload.
///
/// # Errors
/// When the connection is gone.
pub fn send(stream: &TcpStream, first_line: &str, body: &[u8]) -> Result<()> {
    let head = format!("{first_line}\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut head = head.as_bytes();
    let mut body = body;
    // Both in one piece: the extension cannot switch off that small pieces wait for each other.
    while !(head.is_empty() && body.is_empty()) {
        let sent = stream.as_ref().send_vectored(&[IoSlice::new(head), IoSlice::new(body)], 0)?;
        if sent == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        let of_head = sent.min(head.len());
        head = &head[of_head..];
        body = &body[sent - of_head..];
    }
    Ok(())
}

/// The next message; `None` when the peer has closed the connection before one.
///
/// # Errors
/// When it ends in the middle, or is no message as [`send`] makes them.
pub fn receive(stream: &mut TcpStream) -> Result<Option<Message>> {
    let mut head = [0; HEAD_MAX];
    let mut len = 0;
    loop {
        let read = stream.read(&mut head[len..])?;
        match (read, len) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
            _ => len += read,
        }
        if let Some((at, path, length)) = parse(&head[..len])? {
            let mut body = vec![0; length];
            let here = length.min(len - at);
            body[..here].copy_from_slice(&head[at..at + here]);
            stream.read_exact(&mut body[here..])?;
            return Ok(Some(Message { path, body }));
        }
    }
}

/// Where the payload begins, the path, and the payload's length; `None` while the head is not all there.
fn parse(bytes: &[u8]) -> Result<Option<(usize, String, usize)>> {
    let malformed = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let (status, path, fields) = if bytes.starts_with(b"HTTP/") {
        let mut response = httparse::Response::new(&mut fields);
        let status = response.parse(bytes).map_err(|error| malformed(&error.to_string()))?;
        (status, String::new(), response.headers)
    } else {
        let mut request = httparse::Request::new(&mut fields);
        let status = request.parse(bytes).map_err(|error| malformed(&error.to_string()))?;
        (status, request.path.unwrap_or_default().to_owned(), request.headers)
    };
    let httparse::Status::Complete(at) = status else { return Ok(None) };
    let length = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok())
        .ok_or_else(|| malformed("no content-length"))?;
    Ok(Some((at, path, length)))
}
