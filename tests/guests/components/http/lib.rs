//! A `wasi:http/incoming-handler`: answers with the method, the path and the body of each request. `/none` gets no
//! response, `/trap` traps, `/head/CASE` has a head of its own ([`head`]). A body that begins with `!` has it send requests ([`requests::run`]).

mod requests;

use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{
    Fields, IncomingBody, IncomingRequest, Method, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::StreamError;

/// Most bytes of one write.
const WRITE_MAX: usize = 4096;

struct Http;

impl Guest for Http {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let path = request.path_with_query().unwrap_or_default();
        let method = match request.method() {
            Method::Get => "GET",
            Method::Post => "POST",
            _ => "another",
        };
        let mut said = format!("{method} {path} ").into_bytes();
        if path == "/head/seen" {
            said.extend(seen(&request));
        }
        match &*path {
            "/none" => return,
            "/trap" => std::process::abort(),
            _ => {
                let body = request.consume().map(read).unwrap_or_default();
                match body.first() {
                    Some(b'!') => {
                        said = requests::run(&String::from_utf8_lossy(&body)).into_bytes()
                    }
                    _ => said.extend(body),
                }
            }
        }
        let fields = Fields::new();
        let _valid = fields.set("x-length", &[said.len().to_string().into_bytes()]);
        let case = path.strip_prefix("/head/").unwrap_or_default();
        head(&fields, case);
        let response = OutgoingResponse::new(fields);
        let _valid = response.set_status_code(if case == "early" { 103 } else { 201 });
        let Ok(body) = response.body() else { return };
        ResponseOutparam::set(out, Ok(response));
        if case == "length" {
            // The announced body is that of GET.
            let _shorter = OutgoingBody::finish(body, None);
            return;
        }
        let Ok(stream) = body.write() else { return };
        for part in said.chunks(WRITE_MAX) {
            if stream.blocking_write_and_flush(part).is_err() {
                return;
            }
        }
        drop(stream);
        let _ended = OutgoingBody::finish(body, None);
    }
}

/// Adds what a case has beside the other headers.
fn head(fields: &Fields, case: &str) {
    let add = |name: &str, value: &[u8]| {
        let _valid = fields.append(name, value);
    };
    match case {
        "several" => {
            add("set-cookie", b"a=1");
            add("x-empty", b"");
            add("set-cookie", b"b=2");
            add("location", "/é".as_bytes());
            add("keep-alive", b"1");
        }
        "bytes" => add("x-bytes", b"\xff"),
        "long" => add("content-security-policy", &[b'x'; 60_000]),
        "longer" => add("content-security-policy", &[b'x'; 70_000]),
        "length" => add("content-length", b"12345"),
        "many" => (0..300).for_each(|number| add(&format!("x-{number}"), b"y")),
        _ => {}
    }
}

/// The request's headers that begin with `x-`, a line each.
fn seen(request: &IncomingRequest) -> Vec<u8> {
    let fields = request.headers().entries().into_iter();
    let seen = fields.filter(|(name, _)| name.starts_with("x-"));
    seen.flat_map(|(name, value)| [name.as_bytes(), b"=", &value, b"\n"].concat()).collect()
}

fn read(body: IncomingBody) -> Vec<u8> {
    let (mut bytes, stream) = (Vec::new(), body.stream());
    let Ok(stream) = stream else { return bytes };
    loop {
        match stream.blocking_read(1 << 20) {
            Ok(more) => bytes.extend(more),
            Err(StreamError::Closed) => return bytes,
            Err(error) => return format!("{error:?}").into_bytes(),
        }
    }
}

wasip2::http::proxy::export!(Http);
