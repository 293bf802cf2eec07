//! A `wasi:http/handler` of WASI 0.3: answers with the method, the path and the body of each request, whose body goes
//! through as it comes. `/error` gets an error, `/trap` traps, `/served` the number of requests of this instance. A
//! body `!fetch URL` has it send a request, and answer with that one's response.

use std::sync::atomic::{AtomicU32, Ordering};

use wasip3::http::client;
use wasip3::http::types::{ErrorCode, Fields, Method, Request, Response, Scheme};
use wasip3::wit_bindgen::{StreamReader, StreamResult, StreamWriter, spawn_local};
use wasip3::{wit_future, wit_stream};

/// Most bytes that pass at a time.
const STEP: usize = 64 * 1024;

static SERVED: AtomicU32 = AtomicU32::new(0);

struct Http;

impl wasip3::exports::http::handler::Guest for Http {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let served = SERVED.fetch_add(1, Ordering::Relaxed) + 1;
        let path = request.get_path_with_query().unwrap_or_default();
        let method = match request.get_method() {
            Method::Get => "GET",
            Method::Post => "POST",
            _ => "another",
        };
        let head = format!("{method} {path} ");
        match &*path {
            "/error" => return Err(ErrorCode::InternalError(Some("as requested".to_owned()))),
            "/trap" => std::process::abort(),
            "/served" => return Ok(respond(served.to_string().into_bytes(), None)),
            _ => {}
        }
        let (_sender, read) = wit_future::new(|| Ok(()));
        let (mut body, _trailers) = Request::consume_body(request, read);
        let (status, first) = body.read(Vec::with_capacity(STEP)).await;
        let text = String::from_utf8_lossy(&first);
        if let Some(url) = text.strip_prefix("!fetch ") {
            let said = fetch(url).await.unwrap_or_else(|error| error);
            return Ok(respond(said.into_bytes(), None));
        }
        let mut beginning = head.into_bytes();
        beginning.extend(first);
        // A stream that has ended may not be read again.
        let rest = (!matches!(status, StreamResult::Dropped)).then_some(body);
        Ok(respond(beginning, rest))
    }
}

/// A response whose body begins with these bytes and goes on with `rest`, after it is returned.
fn respond(beginning: Vec<u8>, rest: Option<StreamReader<u8>>) -> Response {
    let (mut sender, contents) = wit_stream::new();
    let (trailers_sender, trailers) = wit_future::new(|| Ok(None));
    drop(trailers_sender);
    let headers = Fields::new();
    let _valid = headers.set("x-by", &[b"wasi 0.3".to_vec()]);
    let (response, _sent) = Response::new(headers, Some(contents), trailers);
    let _valid = response.set_status_code(201);
    spawn_local(async move {
        let unread = sender.write_all(beginning).await;
        if let Some(rest) = rest
            && unread.is_empty()
        {
            pass(rest, sender).await;
        }
    });
    response
}

async fn pass(mut from: StreamReader<u8>, mut to: StreamWriter<u8>) {
    loop {
        let (status, bytes) = from.read(Vec::with_capacity(STEP)).await;
        if !to.write_all(bytes).await.is_empty() || matches!(status, StreamResult::Dropped) {
            return;
        }
    }
}

/// Status and body of the response of a server, or the error.
async fn fetch(url: &str) -> Result<String, String> {
    let (scheme, rest) = url.split_once("://").ok_or("no scheme")?;
    // A URL that ends with its host is a request without a path.
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, Some(format!("/{path}"))),
        None => (rest, None),
    };
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    let (trailers_sender, trailers) = wit_future::new(|| Ok(None));
    drop(trailers_sender);
    let (request, sent) = Request::new(Fields::new(), None, trailers, None);
    let refused = |()| "the request is refused".to_owned();
    request.set_method(&Method::Post).map_err(refused)?;
    request.set_scheme(Some(&scheme)).map_err(refused)?;
    request.set_authority(Some(authority)).map_err(refused)?;
    request.set_path_with_query(path.as_deref()).map_err(refused)?;
    let response = match client::send(request).await {
        Ok(response) => response,
        Err(error) => return Err(format!("{error:?}; sent: {:?}", sent.await)),
    };
    let status = response.get_status_code();
    let (_sender, read) = wit_future::new(|| Ok(()));
    let (body, ended) = Response::consume_body(response, read);
    let body = body.collect().await;
    ended.await.map_err(|error| format!("{error:?}"))?;
    Ok(format!("{status} {}", String::from_utf8_lossy(&body)))
}

wasip3::http::service::export!(Http);
