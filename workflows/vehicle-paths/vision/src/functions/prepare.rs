//! `prepare-dataset`: turns anonymized pictures and their labels, which come from different functions, into parts of a tar
//! archive, each with what its pictures are, and, at the end, has the paths reconstructed and adds the annotations that
//! name them.

use serde_json::{Value, json};

use super::{FunctionError, RECONSTRUCT_PATHS, Runtime, send};
use crate::dataset;
use crate::label::{Class, FrameLabels};
use crate::payload::{
    DatasetRequest, DatasetResponse, PathsResponse, Recording, Shot, decode, encode_into,
};

/// Answers one group of parts, in their order. `metadata` is `get_image_metadata` of `fn-utils`: a picture's as JSON.
pub fn prepare_dataset<R: Runtime>(
    parts: &[&[u8]],
    runtime: &R,
    metadata: &impl Fn(&[u8]) -> Result<String, String>,
) -> Result<R::Buffer, FunctionError> {
    let requests: Vec<DatasetRequest> =
        parts.iter().map(|part| decode(part)).collect::<Result<_, _>>()?;
    let response = match requests.as_slice() {
        [DatasetRequest::Pictures { shots }, DatasetRequest::Labels { frames }] => {
            DatasetResponse::Part(part(shots, frames, metadata)?)
        }
        [DatasetRequest::Finish(recording)] => finish(recording, runtime)?,
        _ => return Err(FunctionError::Parts { count: parts.len() }),
    };
    Ok(encode_into(&response, |len| runtime.buffer(len))?)
}

/// Pictures, and behind them one file that says what they are, and what is in them.
fn part(
    shots: &[Shot<'_>],
    frames: &[FrameLabels],
    metadata: &impl Fn(&[u8]) -> Result<String, String>,
) -> Result<Vec<u8>, FunctionError> {
    if !shots.iter().map(|shot| shot.number).eq(frames.iter().map(|frame| frame.number)) {
        let pictures = shots.iter().map(|shot| shot.number).collect();
        let labels = frames.iter().map(|frame| frame.number).collect();
        return Err(FunctionError::Mismatch { pictures, labels });
    }
    let mut all = serde_json::Map::new();
    for (shot, frame) in shots.iter().zip(frames) {
        let bad = |reason: String| FunctionError::Metadata { number: shot.number, reason };
        let text = metadata(shot.jpeg).map_err(bad)?;
        let mut value: Value =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let count = |class| frame.labels.iter().filter(|label| label.class == class).count();
        value["vehicles"] = count(Class::Vehicle).into();
        value["people"] = count(Class::Person).into();
        all.insert(dataset::picture_name(shot.number), value);
    }
    let mut part = dataset::pictures(shots)?;
    if let Some(first) = shots.first() {
        let name = format!("metadata/{:06}.json", first.number);
        part.extend(dataset::entry(&name, Value::Object(all).to_string().as_bytes())?);
    }
    Ok(part)
}

fn finish(recording: &Recording, runtime: &impl Runtime) -> Result<DatasetResponse, FunctionError> {
    let answer = runtime.wait(send(runtime, RECONSTRUCT_PATHS, recording, None)?)?;
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
