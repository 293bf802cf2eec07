//! `prepare-dataset`: turns anonymized pictures into parts of a tar archive, each with what its
//! pictures are, and, at the end, has the paths reconstructed and adds the annotations that name them.

use serde_json::{Value, json};

use super::{Call, FunctionError, RECONSTRUCT_PATHS};
use crate::dataset;
use crate::payload::{
    DatasetRequest, DatasetResponse, PathsResponse, Recording, Shot, decode, encode,
};

/// Answers one request. `metadata` is `get_image_metadata` of `fn-utils`: a picture's as JSON.
pub fn prepare_dataset(
    payload: &[u8],
    runtime: &impl Call,
    metadata: &impl Fn(&[u8]) -> Result<String, String>,
) -> Result<Vec<u8>, FunctionError> {
    let response = match decode::<DatasetRequest>(payload)? {
        DatasetRequest::Collect { shots } => DatasetResponse::Part(part(&shots, metadata)?),
        DatasetRequest::Finish(recording) => finish(&recording, runtime)?,
    };
    Ok(encode(&response)?)
}

/// Pictures, and behind them one file that says what they are.
fn part(
    shots: &[Shot<'_>],
    metadata: &impl Fn(&[u8]) -> Result<String, String>,
) -> Result<Vec<u8>, FunctionError> {
    let mut all = serde_json::Map::new();
    for shot in shots {
        let bad = |reason: String| FunctionError::Metadata { number: shot.number, reason };
        let text = metadata(shot.jpeg).map_err(bad)?;
        let value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        all.insert(dataset::picture_name(shot.number), value);
    }
    let mut part = dataset::pictures(shots)?;
    if let Some(first) = shots.first() {
        let name = format!("metadata/{:06}.json", first.number);
        part.extend(dataset::entry(&name, Value::Object(all).to_string().as_bytes())?);
    }
    Ok(part)
}

fn finish(recording: &Recording, runtime: &impl Call) -> Result<DatasetResponse, FunctionError> {
    let answer = runtime.call(RECONSTRUCT_PATHS, &encode(recording)?)?;
    let answer: PathsResponse = decode(&answer)?;
    let size = (recording.width, recording.height);
    let coco = dataset::annotations(&recording.frames, &recording.skipped, size, &answer.paths);
    let paths = json!({
        "paths": answer.paths,
        "homography": recording.homography,
        "note": answer.note,
    });
    let mut archive = dataset::entry("annotations.json", coco.to_string().as_bytes())?;
    archive.extend(dataset::entry("paths.json", paths.to_string().as_bytes())?);
    archive.extend(dataset::entry("paths.png", &answer.picture)?);
    archive.extend(dataset::end());
    Ok(DatasetResponse::End { archive, paths: answer })
}
