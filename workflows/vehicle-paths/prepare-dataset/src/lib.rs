//! The function `prepare-dataset`, a secondary with `cwasi.fan-in=caller`: packs pictures, together with their labels, into
//! the dataset's archive and, at the end, has `reconstruct-paths` name the tracks. What the pictures are it asks the
//! library `fn-utils`, which is embedded in it. The work is [`vision::functions::prepare_dataset`].

use cwasi_runtime::Cwasi;
use vision::functions::{FunctionError, prepare_dataset};

cwasi::import! {
    mod fn_utils {
        fn get_image_metadata(image: &[u8]) -> Result<String, String>;
    }
}

#[cwasi::handler]
fn answer(parts: cwasi::Parts<'_>) -> Result<cwasi::Region, FunctionError> {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
    prepare_dataset(&parts, &Cwasi, &fn_utils::get_image_metadata)
}
