//! `reconstruct-paths`: labels of a whole video in, vehicles' paths and their picture out.

use super::FunctionError;
use crate::jpeg;
use crate::payload::{PathsResponse, PayloadError, Recording, decode, encode};
use crate::picture;
use crate::track::reconstruct;

/// Share of unsettled pictures from which a recording shows no street that paths could lead over.
const MAX_UNSETTLED: f64 = 1.0 / 3.0;

/// Answers one request.
pub fn reconstruct_paths(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    let recording: Recording = decode(payload)?;
    let labels = recording.frames.iter().flat_map(|frame| &frame.labels);
    if labels.clone().any(|label| !label.rect.is_sound()) {
        let reason = "a box whose sides are out of order".to_owned();
        return Err(PayloadError::Malformed { name: "paths request", reason }.into());
    }
    let size = (recording.width as usize, recording.height as usize);
    let note = note(&recording);
    let paths = match note {
        Some(_) => Vec::new(),
        None => reconstruct(&recording.frames, size, recording.homography.as_ref())?,
    };
    let scene = jpeg::decode(recording.scene)
        .map_err(|source| FunctionError::Picture { number: 0, source })?;
    let unit = if recording.homography.is_some() { " km/h" } else { " px/s" };
    let headline = note.as_ref().map_or("", |_| "NO PATHS: THE CAMERA DOES NOT STAND STILL");
    let picture = picture::draw(&scene, &paths, unit, headline)?;
    Ok(encode(&PathsResponse { paths, note, picture })?)
}

/// Why a recording can have no paths.
fn note(recording: &Recording) -> Option<String> {
    let (unsettled, all) = (recording.skipped.len(), recording.frames.len());
    (unsettled as f64 > MAX_UNSETTLED * all as f64).then(|| {
        format!(
            "in {unsettled} of {all} pictures too much changes at once: the camera moves, or the \
             video is cut together from several; paths need a camera that stands still"
        )
    })
}
