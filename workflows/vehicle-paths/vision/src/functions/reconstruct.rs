//! `reconstruct-paths`: labels of a whole video in, vehicles' paths and their picture out.

use super::FunctionError;
use crate::jpeg;
use crate::payload::{PathsResponse, PayloadError, Recording, decode, encode};
use crate::picture;
use crate::track::reconstruct;

/// Answers one request.
pub fn reconstruct_paths(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    let recording: Recording = decode(payload)?;
    let labels = recording.frames.iter().flat_map(|frame| &frame.labels);
    if labels.clone().any(|label| !label.rect.is_sound()) {
        let reason = "a box whose sides are out of order".to_owned();
        return Err(PayloadError::Malformed { name: "paths request", reason }.into());
    }
    let size = (recording.width as usize, recording.height as usize);
    let paths = reconstruct(&recording.frames, size, recording.homography.as_ref())?;
    let scene = jpeg::decode(recording.scene)
        .map_err(|source| FunctionError::Picture { number: 0, source })?;
    let unit = if recording.homography.is_some() { " km/h" } else { " px/s" };
    let picture = picture::draw(&scene, &paths, unit)?;
    Ok(encode(&PathsResponse { paths, picture })?)
}
