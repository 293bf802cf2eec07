//! MP4: finds the H.264 track, reads one sample at a time, gives frames in display order.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use re_mp4::{Mp4, StsdBoxContent, TrackKind};

use super::h264::H264;
use super::{Picture, TimedPicture, VideoError, read_at, seek};
use crate::frame::Frame;

/// Frames held back for reordering at most; H.264 allows 16 reference frames.
const MAX_REORDER: usize = 17;
/// Longest index accepted, in frames (a day at 25 frames a second).
const MAX_FRAMES: usize = 2_200_000;

/// Where one compressed frame lies.
struct Sample {
    offset: u64,
    size: u64,
    time_ms: u32,
    rank: usize,
}

/// An MP4 file being read.
pub struct Mp4Video<R> {
    reader: R,
    file_size: u64,
    samples: Vec<Sample>,
    fps: f64,
    decoder: H264,
    next: usize,
    shown: usize,
    /// Decoded, waiting for an earlier one; by place in display order.
    waiting: BTreeMap<usize, (u32, Frame)>,
    failure: Option<VideoError>,
}

fn damaged(reason: impl Into<String>) -> VideoError {
    VideoError::Container { container: "MP4", reason: reason.into() }
}

/// The parser gives tracks of codecs that it does not know no kind.
fn no_video(mp4: &Mp4) -> VideoError {
    let unknown = mp4.tracks().values().find_map(|track| {
        match &track.trak(mp4).mdia.minf.stbl.stsd.contents {
            StsdBoxContent::Unknown(code) => Some(code.to_string()),
            _ => None,
        }
    });
    match unknown {
        Some(codec) => VideoError::Codec { codec },
        None => damaged("there is no video track in it"),
    }
}

impl<R: Read + Seek> Mp4Video<R> {
    /// Reads the index.
    pub fn open(mut reader: R, file_size: u64) -> Result<Self, VideoError> {
        seek(&mut reader, SeekFrom::Start(0))?;
        check_boxes(&mut reader, file_size)?;
        seek(&mut reader, SeekFrom::Start(0))?;
        // The parser refuses a box that reaches past the end, which a cut file's last one does;
        // where the index comes first, the frames before the cut are still there to be decoded.
        let mp4 = match Mp4::read(&mut reader, file_size) {
            Ok(mp4) => Ok(mp4),
            Err(_) => {
                seek(&mut reader, SeekFrom::Start(0))?;
                Mp4::read(&mut Clipped::new(&mut reader), u64::MAX >> 1)
            }
        };
        let mp4 = mp4.map_err(|error| damaged(error.to_string()))?;
        let track = mp4
            .tracks()
            .values()
            .find(|track| track.kind == Some(TrackKind::Video))
            .ok_or_else(|| no_video(&mp4))?;
        if track.samples.is_empty() || track.samples.len() > MAX_FRAMES {
            return Err(damaged(format!("its index lists {} frames", track.samples.len())));
        }
        let StsdBoxContent::Avc1(avc) = &track.trak(&mp4).mdia.minf.stbl.stsd.contents else {
            let codec = track.codec_string(&mp4).unwrap_or_else(|| "an unknown codec".to_owned());
            return Err(VideoError::Codec { codec });
        };
        let sets = avc.avcc.sequence_parameter_sets.iter().chain(&avc.avcc.picture_parameter_sets);
        let length_bytes = usize::from(avc.avcc.length_size_minus_one) + 1;
        let decoder = H264::new(sets.map(|set| set.bytes.as_slice()), length_bytes);
        let samples = in_display_order(&track.samples);
        let last_ms = samples.iter().map(|sample| sample.time_ms).max().unwrap_or(0);
        let fps = (samples.len().max(2) - 1) as f64 * 1000.0 / f64::from(last_ms.max(1));
        let (waiting, failure) = (BTreeMap::new(), None);
        Ok(Self { reader, file_size, samples, fps, decoder, next: 0, shown: 0, waiting, failure })
    }

    /// Frames a second.
    pub fn fps(&self) -> f64 {
        self.fps
    }

    /// The next frame to be shown.
    pub fn next_frame(&mut self) -> Result<Option<TimedPicture>, VideoError> {
        loop {
            let ended = self.next >= self.samples.len() || self.failure.is_some();
            let first = self.waiting.first_entry().filter(|entry| {
                ended || *entry.key() == self.shown || self.next - self.shown > MAX_REORDER
            });
            if let Some(entry) = first {
                self.shown = *entry.key() + 1;
                let (time_ms, frame) = entry.remove();
                return Ok(Some(TimedPicture { time_ms, picture: Picture::Frame(frame) }));
            }
            if ended {
                return self.failure.take().map_or(Ok(None), |failure| {
                    self.next = self.samples.len();
                    Err(failure)
                });
            }
            if let Err(failure) = self.decode_one() {
                self.failure = Some(failure);
            }
        }
    }

    fn decode_one(&mut self) -> Result<(), VideoError> {
        let (frame, frames) = (self.next, self.samples.len());
        let Sample { offset, size, time_ms, rank } = self.samples[frame];
        self.next += 1;
        let bytes = read_at(&mut self.reader, offset, size, self.file_size)?
            .ok_or(VideoError::CutShort { frame, frames })?;
        let decoded =
            self.decoder.decode(&bytes).map_err(|reason| VideoError::Frame { frame, reason })?;
        if let Some(picture) = decoded {
            self.waiting.insert(rank, (time_ms, picture));
        }
        Ok(())
    }
}

fn in_display_order(samples: &[re_mp4::Sample]) -> Vec<Sample> {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    order.sort_by_key(|index| samples[*index].composition_timestamp);
    let mut ranks = vec![0; samples.len()];
    order.iter().enumerate().for_each(|(rank, index)| ranks[*index] = rank);
    let one = |(sample, rank): (&re_mp4::Sample, usize)| {
        let ticks = sample.composition_timestamp.max(0) as f64;
        let time_ms = (ticks * 1000.0 / sample.timescale.max(1) as f64).round() as u32;
        Sample { offset: sample.offset, size: sample.size, time_ms, rank }
    };
    samples.iter().zip(ranks).map(one).collect()
}

/// Walks the top-level boxes, so that a missing index is said in the user's words and a forged
/// box size does not reach the parser.
fn check_boxes(reader: &mut (impl Read + Seek), file_size: u64) -> Result<(), VideoError> {
    let (mut at, mut has_index, mut cut) = (0, false, false);
    while at + 8 <= file_size {
        let head = read_at(reader, at, 16.min(file_size - at), file_size)?.unwrap_or_default();
        let short = head.iter().take(4).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let size = match short {
            0 => file_size - at,
            1 if head.len() == 16 => {
                head[8..].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
            }
            size => size,
        };
        if size < 8 {
            return Err(damaged(format!("a box at byte {at} has the impossible size {size}")));
        }
        cut |= at.saturating_add(size) > file_size;
        has_index |= &head[4..8] == b"moov" && !cut;
        at = at.saturating_add(size);
    }
    if has_index {
        return Ok(());
    }
    Err(damaged(if cut {
        "the file ends before its index (moov), so no frame can be found; copy the file again, or \
         record with `-movflags +faststart` so that the index comes first"
    } else {
        "it has no index (moov)"
    }))
}

/// Reads a file that was cut inside its last box as if that box were whole: positions past the
/// end can be sought to, and nothing is there to read.
struct Clipped<'a, R>(&'a mut R);

impl<'a, R> Clipped<'a, R> {
    fn new(reader: &'a mut R) -> Self {
        Self(reader)
    }
}

impl<R: Read> Read for Clipped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        // A box header of size 0 ends the walk through the boxes.
        buffer.fill(0);
        Ok(buffer.len())
    }
}

impl<R: Seek> Seek for Clipped<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}
