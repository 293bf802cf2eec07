//! `process-frames`: labels pictures, and anonymizes them once they are labelled. Keeps nothing: the background comes with
//! the request and goes back with the response. Anonymized pictures leave only towards `prepare-dataset`; the original
//! ones leave to nobody.

use super::{
    FunctionError, Join, PICTURE_PARTS, PICTURES, PREPARE_DATASET, Runtime, pictures_key, send,
};
use crate::anonymize::{anonymize, anonymize_scene};
use crate::detect::{Background, detect};
use crate::frame::Frame;
use crate::jpeg;
use crate::label::FrameLabels;
use crate::payload::{DatasetRequest, ProcessRequest, ProcessResponse, Shot, decode, encode_into};

/// Answers one request.
pub fn process_frames<R: Runtime>(payload: &[u8], runtime: &R) -> Result<R::Buffer, FunctionError> {
    let response = match decode::<ProcessRequest>(payload)? {
        ProcessRequest::Learn { shots } => learn(&shots)?,
        ProcessRequest::Label { background, shots } => label(background, &shots)?,
        ProcessRequest::Anonymize { frames, shots } => {
            hand_on(&anonymized(&frames, &shots)?, runtime)?;
            ProcessResponse::Anonymized
        }
    };
    Ok(encode_into(&response, |len| runtime.buffer(len))?)
}

fn learn(shots: &[Shot]) -> Result<ProcessResponse, FunctionError> {
    let frames = frames(shots)?;
    let background = Box::new(Background::learn(&frames)?);
    let mut scene = Background::scene(&frames);
    anonymize_scene(&mut scene);
    let scene =
        jpeg::encode(&scene).map_err(|source| FunctionError::Picture { number: 0, source })?;
    Ok(ProcessResponse::Learned { background, scene })
}

fn label(
    mut background: Box<Background>,
    shots: &[Shot],
) -> Result<ProcessResponse, FunctionError> {
    background.check()?;
    let frames = frames(shots)?;
    let found = detect(&mut background, &frames)?;
    let mut labels = Vec::with_capacity(shots.len());
    let mut skipped = Vec::new();
    for (shot, found) in shots.iter().zip(found) {
        let (number, time_ms) = (shot.number, shot.time_ms);
        if found.unsettled {
            skipped.push(number);
        }
        labels.push(FrameLabels { number, time_ms, labels: found.labels });
    }
    Ok(ProcessResponse::Labelled { background, labels, skipped })
}

fn frames(shots: &[Shot]) -> Result<Vec<Frame>, FunctionError> {
    shots.iter().map(frame).collect()
}

fn frame(shot: &Shot) -> Result<Frame, FunctionError> {
    let number = shot.number;
    jpeg::decode(shot.jpeg).map_err(|source| FunctionError::Picture { number, source })
}

/// A picture that shows nobody, with its number and time.
type Anonymized = (u32, u32, Vec<u8>);

fn anonymized(labels: &[FrameLabels], shots: &[Shot]) -> Result<Vec<Anonymized>, FunctionError> {
    // Without its own labels a picture would leave as it is.
    let numbers = |numbers: &mut dyn Iterator<Item = u32>| numbers.collect::<Vec<_>>();
    let pictures = numbers(&mut shots.iter().map(|shot| shot.number));
    let labelled = numbers(&mut labels.iter().map(|labels| labels.number));
    if pictures != labelled {
        return Err(FunctionError::Mismatch { pictures, labels: labelled });
    }
    let pairs = shots.iter().zip(labels);
    pairs
        .map(|(shot, labels)| {
            let mut frame = frame(shot)?;
            anonymize(&mut frame, &labels.labels);
            let number = shot.number;
            let picture =
                jpeg::encode(&frame).map_err(|source| FunctionError::Picture { number, source })?;
            Ok((number, shot.time_ms, picture))
        })
        .collect()
}

/// Has the pictures put into the archive, with the labels that come there from elsewhere.
fn hand_on(pictures: &[Anonymized], runtime: &impl Runtime) -> Result<(), FunctionError> {
    let Some((first, ..)) = pictures.first() else { return Ok(()) };
    let shots = pictures
        .iter()
        .map(|(number, time_ms, jpeg)| Shot { number: *number, time_ms: *time_ms, jpeg })
        .collect();
    let key = pictures_key(*first);
    let join = Join { key: &key, parts: PICTURE_PARTS, part: PICTURES };
    let call = send(runtime, PREPARE_DATASET, &DatasetRequest::Pictures { shots }, Some(join))?;
    // The part of the archive goes to whoever brings the labels.
    runtime.wait(call)?;
    Ok(())
}
