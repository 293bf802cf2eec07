//! `extract-frames`: reads the video, leads the other functions through it, delivers the results.
//!
//! A few seconds of sampled pictures are held back so that the empty scene can be learned before
//! the first picture is judged; after that only a few chunks are in memory at a time.
//!
//! Labeling is a chain: each chunk's needs the background that the one before has moved. Anonymizing hangs on the labels
//! of its own chunk only. So while a chunk is labelled, those before it are anonymized, several at a time, and the video
//! is read on. A chunk's pictures and labels meet again in `prepare-dataset`, and what it makes of them is written in
//! the order of the chunks: the results do not depend on what ran when.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Seek, Write};

use thiserror::Error;

use super::{
    CallFailed, FunctionError, Join, LABELS, PICTURE_PARTS, PREPARE_DATASET, PROCESS_FRAMES,
    Runtime, pictures_key, send,
};
use crate::detect::Background;
use crate::geometry::Matrix3;
use crate::jpeg::{self, JpegError};
use crate::label::FrameLabels;
use crate::payload::{
    DatasetRequest, DatasetResponse, PathsResponse, PayloadError, ProcessRequest, ProcessResponse,
    Recording, Shot, decode,
};
use crate::video::{Sampler, Video, VideoError};

/// Pictures sent in one request.
const CHUNK: usize = 12;
/// Sampled pictures held back for learning, at most.
const MAX_HELD: usize = 160;
/// Seconds of video held back for learning.
const LEARNING_SECONDS: f64 = 14.0;
/// Pictures out of those that are learned from.
const LEARNED: usize = 40;
/// Bytes of pictures in one request; a chunk is cut short before it grows beyond.
const CHUNK_BYTES: usize = 24 * 1024 * 1024;

/// Why there are no results.
#[derive(Debug, Error)]
pub enum ExtractError {
    /// Nothing could be decoded.
    #[error("no picture could be decoded from the video: {0}")]
    Nothing(VideoError),
    /// The video has no pictures at all.
    #[error("the video has no pictures in it")]
    NoPictures,
    /// A picture cannot be written as JPEG.
    #[error("sampled picture {number}: {source}")]
    Picture {
        /// Its number.
        number: u32,
        /// Why.
        source: JpegError,
    },
    /// Another function failed.
    #[error(transparent)]
    Call(#[from] CallFailed),
    /// A message cannot be written or read.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A callee answered out of turn.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The archive cannot be written.
    #[error("cannot write the dataset's archive")]
    Archive(#[source] std::io::Error),
}

/// What was done.
#[derive(Debug)]
pub struct Outcome {
    /// Paths and their picture.
    pub paths: PathsResponse,
    /// All labels.
    pub frames: Vec<FrameLabels>,
    /// Sampled pictures left out because too much changed in them at once.
    pub skipped: Vec<u32>,
    /// Why the video could not be read to its end; everything before that is in the results.
    pub problem: Option<VideoError>,
}

/// A sampled picture, waiting to be sent.
struct Held {
    number: u32,
    time_ms: u32,
    jpeg: Vec<u8>,
}

/// Which pictures are taken from a video, and how many chunks of them are worked on at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Pictures sampled a second.
    pub fps: f64,
    /// Sampled pictures at most.
    pub max_frames: u32,
    /// Chunks that are anonymized at a time, at least 1.
    pub branches: usize,
}

/// Runs the workflow over an open video; the dataset's archive goes to `archive` part by part.
pub fn extract_frames<V: Read + Seek, R: Runtime>(
    video: &mut Video<V>,
    plan: Plan,
    homography: Option<Matrix3>,
    runtime: &R,
    archive: &mut impl Write,
) -> Result<Outcome, ExtractError> {
    let fps = plan.fps;
    let mut source = Source::new(video, fps, plan.max_frames);
    let hold = ((LEARNING_SECONDS * fps.min(source.video.fps())) as usize).clamp(1, MAX_HELD);
    let mut held = source.take(hold, usize::MAX)?;
    let Some(first) = held.first() else {
        return Err(source.problem.map_or(ExtractError::NoPictures, ExtractError::Nothing));
    };
    let number = first.number;
    let (width, height) = jpeg::decode_size(&first.jpeg)
        .map_err(|source| ExtractError::Picture { number, source })?;
    let (mut background, scene) = learn(&held, runtime)?;
    let (mut frames, mut skipped) = (Vec::new(), Vec::new());
    let mut branches = VecDeque::new();
    while !held.is_empty() {
        let chunk = next_chunk(&mut held);
        let labels = start_labels(background, &chunk, runtime)?;
        if held.is_empty() {
            held = source.take(CHUNK, CHUNK_BYTES)?;
        }
        let labelled = end_labels::<R>(runtime.wait(labels)?)?;
        background = labelled.background;
        if branches.len() >= plan.branches.max(1)
            && let Some(oldest) = branches.pop_front()
        {
            end_branch(oldest, runtime, archive)?;
        }
        branches.extend(start_branch(&chunk, &labelled.frames, &labelled.skipped, runtime)?);
        frames.extend(labelled.frames);
        skipped.extend(labelled.skipped);
    }
    for branch in branches {
        end_branch(branch, runtime, archive)?;
    }
    let recording = Recording {
        width: width as u32,
        height: height as u32,
        homography,
        scene: &scene,
        frames,
        skipped,
    };
    let (end, paths) = finish(&recording, runtime)?;
    archive.write_all(&end).map_err(ExtractError::Archive)?;
    let Recording { frames, skipped, .. } = recording;
    Ok(Outcome { paths, frames, skipped, problem: source.problem })
}

/// As many pictures as go into one request; at least one.
fn next_chunk(held: &mut Vec<Held>) -> Vec<Held> {
    let mut bytes = 0;
    let fits = |shot: &&Held| {
        bytes += shot.jpeg.len();
        bytes <= CHUNK_BYTES
    };
    let count = held.iter().take(CHUNK).take_while(fits).count().max(1).min(held.len());
    let rest = held.split_off(count);
    std::mem::replace(held, rest)
}

/// The video as sampled JPEGs.
struct Source<'a, R> {
    video: &'a mut Video<R>,
    sampler: Sampler,
    next: u32,
    max_frames: u32,
    problem: Option<VideoError>,
    ended: bool,
}

impl<'a, R: Read + Seek> Source<'a, R> {
    fn new(video: &'a mut Video<R>, fps: f64, max_frames: u32) -> Self {
        let sampler = Sampler::new(fps);
        Self { video, sampler, next: 0, max_frames, problem: None, ended: false }
    }

    /// Up to `count` more pictures; fewer at the end of the video or of what can be read of it.
    fn take(&mut self, count: usize, max_bytes: usize) -> Result<Vec<Held>, ExtractError> {
        let (mut out, mut bytes) = (Vec::new(), 0);
        while out.len() < count && bytes < max_bytes && !self.ended && self.next < self.max_frames {
            match self.video.next_frame() {
                Ok(Some(picture)) if self.sampler.wants(picture.time_ms) => {
                    let (number, time_ms) = (self.next, picture.time_ms);
                    let jpeg = picture
                        .into_jpeg()
                        .map_err(|source| ExtractError::Picture { number, source })?;
                    bytes += jpeg.len();
                    out.push(Held { number, time_ms, jpeg });
                    self.next += 1;
                }
                Ok(Some(_)) => {}
                Ok(None) => self.ended = true,
                Err(problem) => {
                    self.problem = Some(problem);
                    self.ended = true;
                }
            }
        }
        Ok(out)
    }
}

fn shots<'a>(held: impl Iterator<Item = &'a Held>) -> Vec<Shot<'a>> {
    held.map(|one| Shot { number: one.number, time_ms: one.time_ms, jpeg: &one.jpeg }).collect()
}

fn out_of_turn(target: &'static str) -> ExtractError {
    ExtractError::Function(FunctionError::Answer { target })
}

fn learn(
    held: &[Held],
    runtime: &impl Runtime,
) -> Result<(Box<Background>, Vec<u8>), ExtractError> {
    let step = held.len().div_ceil(LEARNED).max(1);
    let request = ProcessRequest::Learn { shots: shots(held.iter().step_by(step)) };
    let answer = runtime.wait(send(runtime, PROCESS_FRAMES, &request, None)?)?;
    match decode(&answer)? {
        ProcessResponse::Learned { background, scene } => Ok((background, scene)),
        _ => Err(out_of_turn(PROCESS_FRAMES)),
    }
}

/// What labeling one chunk gave.
struct Labelled {
    background: Box<Background>,
    frames: Vec<FrameLabels>,
    skipped: Vec<u32>,
}

fn start_labels<R: Runtime>(
    background: Box<Background>,
    chunk: &[Held],
    runtime: &R,
) -> Result<R::Pending, ExtractError> {
    let request = ProcessRequest::Label { background, shots: shots(chunk.iter()) };
    Ok(send(runtime, PROCESS_FRAMES, &request, None)?)
}

fn end_labels<R: Runtime>(answer: R::Answer) -> Result<Labelled, ExtractError> {
    match decode(&answer)? {
        ProcessResponse::Labelled { background, labels, skipped } => {
            Ok(Labelled { background, frames: labels, skipped })
        }
        _ => Err(out_of_turn(PROCESS_FRAMES)),
    }
}

/// A chunk whose pictures are anonymized by `process-frames`, and meet their labels in `prepare-dataset`.
struct Branch<P> {
    pictures: P,
    labels: P,
}

/// Nothing when no picture of the chunk is to be in the archive.
fn start_branch<R: Runtime>(
    chunk: &[Held],
    frames: &[FrameLabels],
    skipped: &[u32],
    runtime: &R,
) -> Result<Option<Branch<R::Pending>>, ExtractError> {
    let skipped: BTreeSet<u32> = skipped.iter().copied().collect();
    let shots = shots(chunk.iter().filter(|one| !skipped.contains(&one.number)));
    let Some(first) = shots.first() else { return Ok(None) };
    let settled = frames.iter().filter(|frame| !skipped.contains(&frame.number));
    let frames: Vec<FrameLabels> = settled.cloned().collect();
    let key = pictures_key(first.number);
    let join = Join { key: &key, parts: PICTURE_PARTS, part: LABELS };
    let labels = DatasetRequest::Labels { frames: frames.clone() };
    let labels = send(runtime, PREPARE_DATASET, &labels, Some(join))?;
    let pictures = ProcessRequest::Anonymize { frames, shots };
    let pictures = send(runtime, PROCESS_FRAMES, &pictures, None)?;
    Ok(Some(Branch { pictures, labels }))
}

fn end_branch<R: Runtime>(
    branch: Branch<R::Pending>,
    runtime: &R,
    archive: &mut impl Write,
) -> Result<(), ExtractError> {
    // First: when this fails, nobody waits for the other.
    let anonymized = runtime.wait(branch.pictures)?;
    let ProcessResponse::Anonymized = decode(&anonymized)? else {
        return Err(out_of_turn(PROCESS_FRAMES));
    };
    let answer = runtime.wait(branch.labels)?;
    match decode(&answer)? {
        DatasetResponse::Part(part) => archive.write_all(&part).map_err(ExtractError::Archive),
        DatasetResponse::End { .. } => Err(out_of_turn(PREPARE_DATASET)),
    }
}

fn finish(
    recording: &Recording,
    runtime: &impl Runtime,
) -> Result<(Vec<u8>, PathsResponse), ExtractError> {
    let request = DatasetRequest::Finish(recording.clone());
    // `prepare-dataset` handles parts only; this one is complete by itself.
    let join = Join { key: "end", parts: 1, part: 0 };
    let answer = runtime.wait(send(runtime, PREPARE_DATASET, &request, Some(join))?)?;
    match decode(&answer)? {
        DatasetResponse::End { archive, paths } => Ok((archive, paths)),
        DatasetResponse::Part(_) => Err(out_of_turn(PREPARE_DATASET)),
    }
}
