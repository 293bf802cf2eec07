//! The function `process-frames`, a secondary: labels and anonymizes a chunk of pictures. The work
//! is [`vision::functions::process_frames`]; the background comes and goes with the payload.

use vision::functions::{CallFailed, FunctionError, process_frames};

#[cwasi::handler]
fn answer(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    process_frames(payload, &call)
}

fn call(target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
    cwasi::call(target, payload)
        .map_err(|error| CallFailed { target: target.to_owned(), reason: error.to_string() })
}
