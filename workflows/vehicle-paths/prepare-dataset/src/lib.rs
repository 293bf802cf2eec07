//! The function `prepare-dataset`, a secondary: packs pictures into the dataset's archive and, at
//! the end, has `reconstruct-paths` name the tracks. The work is
//! [`vision::functions::prepare_dataset`].

use vision::functions::{CallFailed, FunctionError, prepare_dataset};

#[cwasi::handler]
fn answer(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    prepare_dataset(payload, &call)
}

fn call(target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
    cwasi::call(target, payload)
        .map_err(|error| CallFailed { target: target.to_owned(), reason: error.to_string() })
}
