//! `extract-frames`: reads the video, leads the other functions through it, delivers the results.
//!
//! A few seconds of sampled pictures are held back so that the empty scene can be learned before
//! the first picture is judged; after that only one chunk is in memory at a time.

use std::io::{Read, Seek, Write};

use thiserror::Error;

use super::{Call, CallFailed, FunctionError, PREPARE_DATASET, PROCESS_FRAMES};
use crate::detect::Background;
use crate::geometry::Matrix3;
use crate::jpeg::{self, JpegError};
use crate::label::FrameLabels;
use crate::payload::{
    DatasetRequest, DatasetResponse, PathsResponse, PayloadError, ProcessRequest, ProcessResponse,
    Recording, Shot, decode, encode,
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

/// Runs the workflow over an open video; the dataset's archive goes to `archive` part by part.
pub fn extract_frames<R: Read + Seek>(
    video: &mut Video<R>,
    fps: f64,
    max_frames: u32,
    homography: Option<Matrix3>,
    runtime: &impl Call,
    archive: &mut impl Write,
) -> Result<Outcome, ExtractError> {
    let mut source = Source::new(video, fps, max_frames);
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
    loop {
        let mut bytes = 0;
        let fits = |shot: &&Held| {
            bytes += shot.jpeg.len();
            bytes <= CHUNK_BYTES
        };
        let count = held.iter().take(CHUNK).take_while(fits).count().max(1).min(held.len());
        let rest = held.split_off(count);
        let chunk = std::mem::replace(&mut held, rest);
        if chunk.is_empty() {
            break;
        }
        let done = process(background, &chunk, runtime)?;
        background = done.background;
        archive.write_all(&done.archive).map_err(ExtractError::Archive)?;
        frames.extend(done.labels);
        skipped.extend(done.skipped);
        if held.is_empty() {
            held = source.take(CHUNK, CHUNK_BYTES)?;
        }
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

fn learn(held: &[Held], runtime: &impl Call) -> Result<(Box<Background>, Vec<u8>), ExtractError> {
    let step = held.len().div_ceil(LEARNED).max(1);
    let request = encode(&ProcessRequest::Learn { shots: shots(held.iter().step_by(step)) })?;
    match decode(&runtime.call(PROCESS_FRAMES, &request)?)? {
        ProcessResponse::Learned { background, scene } => Ok((background, scene)),
        ProcessResponse::Processed { .. } => Err(out_of_turn(PROCESS_FRAMES)),
    }
}

/// What one chunk gave.
struct Done {
    background: Box<Background>,
    labels: Vec<FrameLabels>,
    skipped: Vec<u32>,
    archive: Vec<u8>,
}

fn process(
    background: Box<Background>,
    chunk: &[Held],
    runtime: &impl Call,
) -> Result<Done, ExtractError> {
    let shots = shots(chunk.iter());
    let request = encode(&ProcessRequest::Process { background, shots })?;
    match decode(&runtime.call(PROCESS_FRAMES, &request)?)? {
        ProcessResponse::Processed { background, labels, skipped, archive } => {
            Ok(Done { background, labels, skipped, archive })
        }
        ProcessResponse::Learned { .. } => Err(out_of_turn(PROCESS_FRAMES)),
    }
}

fn finish(
    recording: &Recording,
    runtime: &impl Call,
) -> Result<(Vec<u8>, PathsResponse), ExtractError> {
    let request = encode(&DatasetRequest::Finish(recording.clone()))?;
    match decode(&runtime.call(PREPARE_DATASET, &request)?)? {
        DatasetResponse::End { archive, paths } => Ok((archive, paths)),
        DatasetResponse::Part(_) => Err(out_of_turn(PREPARE_DATASET)),
    }
}
