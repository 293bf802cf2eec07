//! `get_image_metadata` of the library `fn-utils`: what a picture is, from its header alone.

use serde_json::json;

use crate::jpeg::{JpegError, decode_size};

/// Encoding, width, height and length of a picture, as JSON.
pub fn image_metadata(image: &[u8]) -> Result<String, JpegError> {
    let (width, height) = decode_size(image)?;
    let metadata =
        json!({ "format": "jpeg", "width": width, "height": height, "bytes": image.len() });
    Ok(metadata.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::jpeg;

    #[test]
    fn the_header_tells_and_damage_is_an_error() {
        let picture = jpeg::encode(&Frame::grey(64, 48, 90)).unwrap();
        let metadata: serde_json::Value =
            serde_json::from_str(&image_metadata(&picture).unwrap()).unwrap();
        assert_eq!((&metadata["width"], &metadata["height"]), (&64.into(), &48.into()));
        assert_eq!(metadata["bytes"], picture.len());
        assert!(image_metadata(b"no picture").is_err());
    }
}
