//! `process-frames`: labels and anonymizes pictures. Keeps nothing: the background comes with the
//! request and goes back with the response. Anonymized pictures leave only towards
//! `prepare-dataset`; the original ones leave to nobody.

use super::{Call, FunctionError, PREPARE_DATASET};
use crate::anonymize::{anonymize, anonymize_scene};
use crate::detect::{Background, detect};
use crate::frame::Frame;
use crate::jpeg;
use crate::label::FrameLabels;
use crate::payload::{
    DatasetRequest, DatasetResponse, ProcessRequest, ProcessResponse, Shot, decode, encode,
};

/// Answers one request.
pub fn process_frames(payload: &[u8], runtime: &impl Call) -> Result<Vec<u8>, FunctionError> {
    let response = match decode::<ProcessRequest>(payload)? {
        ProcessRequest::Learn { shots } => {
            let frames = frames(&shots)?;
            let background = Box::new(Background::learn(&frames)?);
            let mut scene = Background::scene(&frames);
            anonymize_scene(&mut scene);
            let scene = jpeg::encode(&scene)
                .map_err(|source| FunctionError::Picture { number: 0, source })?;
            ProcessResponse::Learned { background, scene }
        }
        ProcessRequest::Process { mut background, shots } => {
            background.check()?;
            let mut frames = frames(&shots)?;
            let found = detect(&mut background, &frames)?;
            let mut labels = Vec::with_capacity(shots.len());
            let mut pictures = Vec::with_capacity(shots.len());
            let mut skipped = Vec::new();
            for ((shot, frame), found) in shots.iter().zip(&mut frames).zip(found) {
                let (number, time_ms) = (shot.number, shot.time_ms);
                if found.unsettled {
                    skipped.push(number);
                } else {
                    anonymize(frame, &found.labels);
                    let picture = jpeg::encode(frame)
                        .map_err(|source| FunctionError::Picture { number, source })?;
                    pictures.push((number, time_ms, picture));
                }
                labels.push(FrameLabels { number, time_ms, labels: found.labels });
            }
            let archive = collect(&pictures, runtime)?;
            ProcessResponse::Processed { background, labels, skipped, archive }
        }
    };
    Ok(encode(&response)?)
}

fn frames(shots: &[Shot]) -> Result<Vec<Frame>, FunctionError> {
    let read = |shot: &Shot| {
        let number = shot.number;
        jpeg::decode(shot.jpeg).map_err(|source| FunctionError::Picture { number, source })
    };
    shots.iter().map(read).collect()
}

/// Has the pictures put into the archive.
fn collect(
    pictures: &[(u32, u32, Vec<u8>)],
    runtime: &impl Call,
) -> Result<Vec<u8>, FunctionError> {
    if pictures.is_empty() {
        return Ok(Vec::new());
    }
    let shots = pictures
        .iter()
        .map(|(number, time_ms, jpeg)| Shot { number: *number, time_ms: *time_ms, jpeg })
        .collect();
    let request = encode(&DatasetRequest::Collect { shots })?;
    let response = runtime.call(PREPARE_DATASET, &request)?;
    match decode::<DatasetResponse>(&response)? {
        DatasetResponse::Part(archive) => Ok(archive),
        DatasetResponse::End { .. } => Err(FunctionError::Answer { target: PREPARE_DATASET }),
    }
}
