//! A `wasi:http/incoming-handler` that answers every request with the same 16 bytes. The bench's clients take them for
//! an answer to an empty payload.

use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};

const HELLO: [u8; 16] = *b"hello...\0\0\0\0\0\0\0\0";

struct Hello;

impl Guest for Hello {
    fn handle(_request: IncomingRequest, out: ResponseOutparam) {
        let response = OutgoingResponse::new(Fields::new());
        let Ok(body) = response.body() else { return };
        ResponseOutparam::set(out, Ok(response));
        let Ok(stream) = body.write() else { return };
        let _reader_waits = stream.blocking_write_and_flush(&HELLO);
        drop(stream);
        let _ended = OutgoingBody::finish(body, None);
    }
}

wasip2::http::proxy::export!(Hello);
