//! Requests of the component's own, as a payload describes them.

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method,
    OutgoingBody, OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::{InputStream, StreamError};

/// Most bytes of one write.
const WRITE_MAX: usize = 4096;

/// Sends what the first line says and the rest as the body: the response's status, header `x-seen` and body, or the
/// error.
///
/// - `!fetch URL [connect] [first byte] [between bytes]`: with the longest waits in milliseconds.
/// - `!duplex URL`: sends each byte of the body alone and reads what comes back before it sends the next.
/// - `!leave URL`: leaves the request as it is when its response begins.
pub(crate) fn run(text: &str) -> String {
    let (line, body) = text.split_once('\n').unwrap_or((text, ""));
    let words: Vec<&str> = line.split(' ').collect();
    let done = match *words {
        ["!fetch", url, ref waits @ ..] => fetch(url, waits, body.as_bytes()),
        ["!duplex", url] => duplex(url, body.as_bytes()),
        ["!leave", url] => leave(url),
        _ => return format!("unknown: {line}"),
    };
    done.unwrap_or_else(|error| error)
}

fn fetch(url: &str, waits: &[&str], body: &[u8]) -> Result<String, String> {
    let (response, outgoing) = begin(url, options(waits)?)?;
    let sent = write(&outgoing, body);
    // A server may answer before it has read everything.
    let ended = OutgoingBody::finish(outgoing, None);
    let response = wait(&response)?;
    let mut said = format!("{} {} ", response.status(), header(&response, "x-seen"));
    let body = response.consume().map_err(|()| "no body")?;
    let stream = body.stream().map_err(|()| "no stream")?;
    loop {
        match stream.blocking_read(1 << 20) {
            Ok(more) => said += &String::from_utf8_lossy(&more),
            Err(StreamError::Closed) => break,
            Err(error) => return Err(format!("{said}then {}", failed(&error))),
        }
    }
    drop(stream);
    drop(IncomingBody::finish(body));
    sent.and(ended.map_err(explained)).map(|()| said)
}

fn duplex(url: &str, body: &[u8]) -> Result<String, String> {
    let (response, outgoing) = begin(url, None)?;
    let output = outgoing.write().map_err(|()| "no stream")?;
    let response = wait(&response)?;
    let incoming = response.consume().map_err(|()| "no body")?;
    let input = incoming.stream().map_err(|()| "no stream")?;
    let mut said = String::new();
    for byte in body {
        output.blocking_write_and_flush(&[*byte]).map_err(|error| failed(&error))?;
        said += &format!("{}+", String::from_utf8_lossy(&piece(&input)?));
    }
    drop(output);
    OutgoingBody::finish(outgoing, None).map_err(explained)?;
    match input.blocking_read(1) {
        Err(StreamError::Closed) => Ok(said),
        other => Err(format!("{said} and then {other:?}")),
    }
}

fn leave(url: &str) -> Result<String, String> {
    let (response, outgoing) = begin(url, None)?;
    std::mem::forget((wait(&response)?, response, outgoing));
    Ok("left".to_owned())
}

/// The next bytes, at least one.
fn piece(input: &InputStream) -> Result<Vec<u8>, String> {
    input.blocking_read(64).map_err(|error| failed(&error))
}

fn options(waits: &[&str]) -> Result<Option<RequestOptions>, String> {
    let &[connect, first_byte, between_bytes] = waits else { return Ok(None) };
    let options = RequestOptions::new();
    let ns = |text: &str| match text.parse::<u64>() {
        Ok(ms) => Ok(Some(ms * 1_000_000)),
        Err(error) => Err(error.to_string()),
    };
    let refused = |()| "the option is refused".to_owned();
    options.set_connect_timeout(ns(connect)?).map_err(refused)?;
    options.set_first_byte_timeout(ns(first_byte)?).map_err(refused)?;
    options.set_between_bytes_timeout(ns(between_bytes)?).map_err(refused)?;
    Ok(Some(options))
}

/// Sends the head of a `POST`.
fn begin(
    url: &str,
    options: Option<RequestOptions>,
) -> Result<(FutureIncomingResponse, OutgoingBody), String> {
    let (scheme, rest) = url.split_once("://").ok_or("no scheme")?;
    // A URL that ends with its host is a request without a path.
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(format!("/{path}"))),
        None => (rest, None),
    };
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    let headers = Fields::new();
    headers.set("x-sent", &[b"by a component".to_vec()]).map_err(|error| format!("{error:?}"))?;
    let request = OutgoingRequest::new(headers);
    let refused = |()| "the request is refused".to_owned();
    request.set_method(&Method::Post).map_err(refused)?;
    request.set_scheme(Some(&scheme)).map_err(refused)?;
    request.set_authority(Some(authority)).map_err(refused)?;
    request.set_path_with_query(path.as_deref()).map_err(refused)?;
    let body = request.body().map_err(refused)?;
    Ok((outgoing_handler::handle(request, options).map_err(explained)?, body))
}

fn write(body: &OutgoingBody, bytes: &[u8]) -> Result<(), String> {
    let stream = body.write().map_err(|()| "no stream")?;
    for part in bytes.chunks(WRITE_MAX) {
        stream.blocking_write_and_flush(part).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn wait(response: &FutureIncomingResponse) -> Result<IncomingResponse, String> {
    response.subscribe().block();
    let response = response.get().ok_or("not ready")?.map_err(|()| "taken")?;
    response.map_err(explained)
}

fn header(response: &IncomingResponse, name: &str) -> String {
    let values = response.headers().get(name);
    values.first().map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

fn failed(error: &StreamError) -> String {
    match error {
        StreamError::Closed => "closed".to_owned(),
        StreamError::LastOperationFailed(error) => error.to_debug_string(),
    }
}

fn explained(error: ErrorCode) -> String {
    format!("{error:?}")
}
