//! The whole workflow in one process: the same functions and payloads, joined by plain calls. It
//! is the reference that the functions in their sandboxes must agree with.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use vision::functions::extract::{ExtractError, Outcome, extract_frames};
use vision::functions::{
    CallFailed, PREPARE_DATASET, PROCESS_FRAMES, RECONSTRUCT_PATHS, image_metadata,
    prepare_dataset, process_frames, reconstruct_paths,
};
use vision::geometry::Matrix3;
use vision::video::Video;

/// Calls, bytes out and bytes back, per callee.
pub type Traffic = BTreeMap<String, (u64, u64, u64)>;

/// Runs the workflow over a video; the archive goes to `archive`.
pub fn run<R: Read + Seek>(
    video: &mut Video<R>,
    fps: f64,
    max_frames: u32,
    homography: Option<Matrix3>,
    archive: &mut impl Write,
) -> Result<(Outcome, Traffic), ExtractError> {
    let traffic = RefCell::new(Traffic::new());
    let runtime = |target: &str, payload: &[u8]| call(&traffic, target, payload);
    let outcome = extract_frames(video, fps, max_frames, homography, &runtime, archive)?;
    Ok((outcome, traffic.take()))
}

fn call(traffic: &RefCell<Traffic>, target: &str, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
    let nested = |target: &str, payload: &[u8]| call(traffic, target, payload);
    let answer = match target {
        PROCESS_FRAMES => process_frames(payload, &nested),
        PREPARE_DATASET => prepare_dataset(payload, &nested, &|image| {
            image_metadata(image).map_err(|error| error.to_string())
        }),
        RECONSTRUCT_PATHS => reconstruct_paths(payload),
        _ => {
            let reason = "there is no such function".to_owned();
            return Err(CallFailed { target: target.to_owned(), reason });
        }
    };
    let answer = answer
        .map_err(|error| CallFailed { target: target.to_owned(), reason: error.to_string() })?;
    let mut traffic = traffic.borrow_mut();
    let entry = traffic.entry(target.to_owned()).or_default();
    entry.0 += 1;
    entry.1 += payload.len() as u64;
    entry.2 += answer.len() as u64;
    Ok(answer)
}
