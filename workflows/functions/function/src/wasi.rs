pub use wasip2;

use wasip2::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};

use crate::{Function, Query};

/// Most bytes of one write.
const WRITE_MAX: usize = 4096;

/// Answers a request.
pub fn answer(function: Function, request: &IncomingRequest, out: ResponseOutparam) {
    let path = request.path_with_query().unwrap_or_default();
    let query = path.split_once('?').map_or("", |(_path, query)| query);
    let (status, text) = match function(&Query::read(query)) {
        Ok(text) => (200, text),
        Err(text) => (500, text),
    };
    let fields = Fields::new();
    let length = text.len().to_string().into_bytes();
    let _valid = fields.set("content-length", &[length]);
    let response = OutgoingResponse::new(fields);
    let _valid = response.set_status_code(status);
    let Ok(body) = response.body() else { return };
    ResponseOutparam::set(out, Ok(response));
    let Ok(stream) = body.write() else { return };
    for part in text.as_bytes().chunks(WRITE_MAX) {
        // The client has gone.
        if stream.blocking_write_and_flush(part).is_err() {
            return;
        }
    }
    drop(stream);
    let _ended = OutgoingBody::finish(body, None);
}
