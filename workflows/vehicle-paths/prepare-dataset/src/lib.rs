//! The function `prepare-dataset`, a secondary: packs pictures into the dataset's archive and, at
//! the end, has `reconstruct-paths` name the tracks. What the pictures are it asks the library
//! `fn-utils`, which is embedded in it. The work is
//! [`vision::functions::prepare_dataset`].

use vision::functions::{CallFailed, FunctionError, prepare_dataset};

cwasi::import! {
    mod fn_utils {
        fn get_image_metadata(image: &[u8]) -> Result<String, String>;
    }
}

#[cwasi::handler]
fn answer(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    prepare_dataset(payload, &call, &fn_utils::get_image_metadata)
}

fn call(target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
    cwasi::call(target, payload)
        .map_err(|error| CallFailed { target: target.to_owned(), reason: error.to_string() })
}
