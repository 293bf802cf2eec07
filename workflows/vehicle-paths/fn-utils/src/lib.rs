//! The library `fn-utils` (paper §5): runs inside the functions that import it, as the annotation
//! `cwasi.embed=fn_utils=IMAGE` tells. The work is [`vision::functions::image_metadata`].

use vision::functions::image_metadata;
use vision::jpeg::JpegError;

cwasi::library!();

/// Encoding, width, height and length of a picture, as JSON.
#[cwasi::export]
fn get_image_metadata(image: &[u8]) -> Result<String, JpegError> {
    image_metadata(image)
}
