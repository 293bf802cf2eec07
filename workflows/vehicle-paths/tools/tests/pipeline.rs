//! The whole workflow in one process on a generated H.264 video: whole, and cut in the middle.
//! Needs `ffmpeg`, like the generator.
#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::io::Cursor;
use std::process::Command;

use vehicle_paths_tools::pipeline;
use vision::video::{Video, VideoError};

/// A short scene at 10 pictures a second; the index comes first in the file.
fn scene(seconds: u32) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_traffic-scene"))
        .args(["--width", "320", "--height", "180", "--fps", "10", "--seed", "1"])
        .args(["--seconds", &seconds.to_string(), "--out"])
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(folder.path().join("cam0.mp4")).unwrap()
}

#[test]
fn a_video_becomes_a_picture_and_an_archive() {
    let bytes = scene(3);
    let mut video = Video::open(Cursor::new(&bytes)).unwrap();
    let mut archive = Vec::new();
    let (outcome, traffic) = pipeline::run(&mut video, 10.0, u32::MAX, None, &mut archive).unwrap();
    assert!(outcome.problem.is_none());
    assert_eq!(outcome.frames.len(), 30);
    assert!(outcome.paths.picture.starts_with(b"\x89PNG"));
    let names: Vec<String> = tar::Archive::new(archive.as_slice())
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names.iter().filter(|name| name.ends_with(".jpg")).count(), 30);
    assert!(names.contains(&"annotations.json".to_owned()), "{names:?}");
    assert_eq!(traffic["reconstruct-paths"].0, 1);
}

#[test]
fn a_cut_video_gives_what_was_decoded_and_says_where_it_ends() {
    let bytes = scene(3);
    let cut = &bytes[..bytes.len() * 3 / 4];
    let mut video = Video::open(Cursor::new(cut)).unwrap();
    let mut archive = Vec::new();
    let (outcome, _) = pipeline::run(&mut video, 10.0, u32::MAX, None, &mut archive).unwrap();
    assert!((1..30).contains(&outcome.frames.len()), "{}", outcome.frames.len());
    let problem = outcome.problem.unwrap();
    assert!(matches!(problem, VideoError::CutShort { frames: 30, .. }), "{problem}");
}
