//! `prepare-dataset`: turns anonymized pictures into parts of a tar archive and, at the end, has
//! the paths reconstructed and adds the annotations that name them.

use serde_json::json;

use super::{Call, FunctionError, RECONSTRUCT_PATHS};
use crate::dataset;
use crate::payload::{DatasetRequest, DatasetResponse, PathsResponse, Recording, decode, encode};

/// Answers one request.
pub fn prepare_dataset(payload: &[u8], runtime: &impl Call) -> Result<Vec<u8>, FunctionError> {
    let response = match decode::<DatasetRequest>(payload)? {
        DatasetRequest::Collect { shots } => DatasetResponse::Part(dataset::pictures(&shots)?),
        DatasetRequest::Finish(recording) => finish(&recording, runtime)?,
    };
    Ok(encode(&response)?)
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
