//! The whole workflow in one process: the same functions and payloads, joined by plain calls, one after the other. It
//! is the reference that the functions in their sandboxes must agree with.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

use vision::functions::extract::{ExtractError, Outcome, Plan, extract_frames};
use vision::functions::{
    CallFailed, Join, PREPARE_DATASET, PROCESS_FRAMES, RECONSTRUCT_PATHS, Runtime, image_metadata,
    prepare_dataset, process_frames, reconstruct_paths,
};
use vision::geometry::Matrix3;
use vision::video::Video;

/// Calls, bytes out and bytes back, per callee.
pub type Traffic = BTreeMap<String, (u64, u64, u64)>;

/// Runs the workflow over a video; the archive goes to `archive`.
pub fn run<R: Read + Seek>(
    video: &mut Video<R>,
    plan: Plan,
    homography: Option<Matrix3>,
    archive: &mut impl Write,
) -> Result<(Outcome, Traffic), ExtractError> {
    let runtime = Native::default();
    let outcome = extract_frames(video, plan, homography, &runtime, archive)?;
    Ok((outcome, runtime.traffic.take()))
}

/// How a call ended.
type End = Result<Vec<u8>, CallFailed>;

/// Makes every call when it is started; parts of a group when the last one is.
#[derive(Debug, Default)]
struct Native {
    traffic: RefCell<Traffic>,
    groups: RefCell<BTreeMap<String, Group>>,
}

/// Parts that are handled together.
#[derive(Debug, Default)]
struct Group {
    parts: BTreeMap<u32, Vec<u8>>,
    ended: Option<End>,
}

/// A call that was made, or is a part.
enum Pending {
    Ended(End),
    Part { target: String, key: String },
}

impl Runtime for Native {
    type Buffer = Vec<u8>;
    type Pending = Pending;
    type Answer = Vec<u8>;

    fn buffer(&self, len: usize) -> Vec<u8> {
        Vec::with_capacity(len)
    }

    fn start(&self, target: &str, payload: Vec<u8>, join: Option<Join<'_>>) -> Pending {
        let Some(Join { key, parts, part }) = join else {
            return Pending::Ended(self.call(target, &[&payload]));
        };
        let (target, key) = (target.to_owned(), key.to_owned());
        let mut groups = self.groups.borrow_mut();
        let group = groups.entry(key.clone()).or_default();
        group.parts.insert(part, payload);
        if group.parts.len() as u64 == u64::from(parts) {
            let parts = std::mem::take(&mut group.parts);
            drop(groups);
            let parts: Vec<&[u8]> = parts.values().map(Vec::as_slice).collect();
            let ended = self.call(&target, &parts);
            self.groups.borrow_mut().entry(key.clone()).or_default().ended = Some(ended);
        }
        Pending::Part { target, key }
    }

    fn wait(&self, call: Pending) -> End {
        match call {
            Pending::Ended(ended) => ended,
            Pending::Part { target, key } => {
                let ended = self.groups.borrow().get(&key).and_then(|group| group.ended.clone());
                ended.unwrap_or_else(|| {
                    Err(CallFailed { target, reason: format!("parts of {key} are missing") })
                })
            }
        }
    }
}

impl Native {
    fn call(&self, target: &str, parts: &[&[u8]]) -> End {
        let failed = |reason: String| CallFailed { target: target.to_owned(), reason };
        let answer = match (target, parts) {
            (PROCESS_FRAMES, [payload]) => process_frames(payload, self),
            (PREPARE_DATASET, parts) => prepare_dataset(parts, self, &|image| {
                image_metadata(image).map_err(|error| error.to_string())
            }),
            (RECONSTRUCT_PATHS, [payload]) => reconstruct_paths(payload),
            _ => return Err(failed("there is no such function".to_owned())),
        };
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let mut traffic = self.traffic.borrow_mut();
        let entry = traffic.entry(target.to_owned()).or_default();
        entry.0 += parts.len() as u64;
        entry.1 += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        entry.2 += answer.len() as u64;
        Ok(answer)
    }
}
