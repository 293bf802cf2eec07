//! The whole workflow in one process on a generated H.264 video: whole, and cut in the middle.
//! Needs `ffmpeg`, like the generator.
#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::io::Cursor;
use std::process::Command;

use vehicle_paths_tools::pipeline;
use vision::functions::extract::Plan;
use vision::video::{Video, VideoError};

/// One chunk at a time.
const PLAN: Plan = Plan { fps: 10.0, max_frames: u32::MAX, branches: 1 };

/// A short scene at 10 pictures a second; in MP4 the index comes first in the file.
fn scene(seconds: u32, codec: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_traffic-scene"))
        .args(["--width", "320", "--height", "180", "--fps", "10", "--seed", "1"])
        .args(["--seconds", &seconds.to_string(), "--codec", codec, "--out"])
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    let video = if codec == "mjpeg" { "cam0.avi" } else { "cam0.mp4" };
    std::fs::read(folder.path().join(video)).unwrap()
}

#[test]
fn h264_in_mp4_becomes_a_picture_and_an_archive() {
    becomes_a_picture_and_an_archive(&scene(3, "h264"));
}

#[test]
fn motion_jpeg_in_avi_becomes_a_picture_and_an_archive() {
    becomes_a_picture_and_an_archive(&scene(3, "mjpeg"));
}

fn becomes_a_picture_and_an_archive(bytes: &[u8]) {
    let mut video = Video::open(Cursor::new(bytes)).unwrap();
    let mut archive = Vec::new();
    let (outcome, traffic) = pipeline::run(&mut video, PLAN, None, &mut archive).unwrap();
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
    // 30 pictures are three chunks: learned, labelled and anonymized; two parts each, and the end.
    assert_eq!((traffic["process-frames"].0, traffic["prepare-dataset"].0), (7, 7));
    for branches in [2, 64] {
        let mut video = Video::open(Cursor::new(bytes)).unwrap();
        let mut again = Vec::new();
        let plan = Plan { branches, ..PLAN };
        let (same, _) = pipeline::run(&mut video, plan, None, &mut again).unwrap();
        assert!(again == archive && same.paths == outcome.paths, "{branches} branches");
    }
}

#[test]
fn a_cut_video_gives_what_was_decoded_and_says_where_it_ends() {
    for codec in ["h264", "mjpeg"] {
        let bytes = scene(3, codec);
        let cut = &bytes[..bytes.len() * 3 / 4];
        let mut video = Video::open(Cursor::new(cut)).unwrap();
        let mut archive = Vec::new();
        let (outcome, _) = pipeline::run(&mut video, PLAN, None, &mut archive).unwrap();
        assert!((1..30).contains(&outcome.frames.len()), "{codec}: {}", outcome.frames.len());
        let problem = outcome.problem.unwrap();
        assert!(matches!(problem, VideoError::CutShort { frames: 30, .. }), "{codec}: {problem}");
    }
}

#[test]
fn a_video_damaged_in_the_middle_gives_what_comes_before() {
    let mut bytes = scene(3, "mjpeg");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0);
    let mut video = Video::open(Cursor::new(&bytes)).unwrap();
    let mut archive = Vec::new();
    let (outcome, _) = pipeline::run(&mut video, PLAN, None, &mut archive).unwrap();
    assert!((10..30).contains(&outcome.frames.len()), "{}", outcome.frames.len());
    assert!(outcome.problem.is_some());
}

#[test]
fn empty_and_foreign_files_and_other_codecs_are_named_as_such() {
    let open = |bytes: &[u8]| Video::open(Cursor::new(bytes)).map(|_| ()).unwrap_err();
    assert!(matches!(open(b""), VideoError::Empty));
    assert!(matches!(open(b"MZ not a video at all"), VideoError::Foreign { .. }));
    let folder = tempfile::tempdir().unwrap();
    for (codec, name) in [("mpeg4", "other.mp4"), ("mpeg4", "other.avi")] {
        let path = folder.path().join(name);
        let status = Command::new("ffmpeg")
            .args(["-v", "error", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=1"])
            .args(["-c:v", codec])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        let error = open(&std::fs::read(&path).unwrap());
        assert!(matches!(error, VideoError::Codec { .. }), "{name}: {error}");
        assert!(error.to_string().contains("libx264"), "{error}");
    }
}
