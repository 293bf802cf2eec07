//! The function `extract-frames`, the primary: reads a video from a mount, has it processed, and
//! writes `paths.png`, `paths.json` and `dataset.tar` into the output mount.
//!
//! Exit codes: 0 all is well; 1 no results; 2 wrong arguments; 3 the video could be read only in
//! part, and the results cover that part.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cwasi_runtime::Cwasi;
use serde_json::json;
use vision::functions::extract::{Outcome, Plan, extract_frames};
use vision::functions::options::{self, Options};
use vision::geometry::Matrix3;
use vision::video::Video;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("extract-frames: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(outcome) => report(&options, &outcome),
        Err(error) => {
            eprintln!("extract-frames: {}: {error}", options.video);
            ExitCode::FAILURE
        }
    }
}

/// A file operation that failed, with the file.
fn failed(operation: &str, path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("cannot {operation} {}: {error}", path.display())
}

fn run(options: &Options) -> Result<Outcome, String> {
    let homography = homography(options)?;
    let path = PathBuf::from(&options.video);
    let file = File::open(&path).map_err(failed("open", &path))?;
    let mut video = Video::open(BufReader::new(file)).map_err(|error| chain(&error))?;
    let out = PathBuf::from(&options.out);
    let tar = out.join("dataset.tar");
    let mut archive = BufWriter::new(File::create(&tar).map_err(failed("create", &tar))?);
    let outcome = extract_frames(
        &mut video,
        Plan { fps: options.fps, max_frames: options.max_frames, branches: options.branches },
        homography,
        &Cwasi,
        &mut archive,
    )
    .map_err(|error| chain(&error))?;
    archive.flush().map_err(failed("write", &tar))?;
    let found = &outcome.paths;
    let paths = json!({ "paths": found.paths, "homography": homography, "note": found.note });
    for (name, contents) in [
        ("paths.png", outcome.paths.picture.as_slice()),
        ("paths.json", paths.to_string().as_bytes()),
    ] {
        let path = out.join(name);
        std::fs::write(&path, contents).map_err(failed("write", &path))?;
    }
    Ok(outcome)
}

fn homography(options: &Options) -> Result<Option<Matrix3>, String> {
    let Some(path) = options.homography.as_ref().map(PathBuf::from) else { return Ok(None) };
    let json = std::fs::read(&path).map_err(failed("read", &path))?;
    let found = options::homography(&json, options.camera);
    found.map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

/// An error with its sources, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn report(options: &Options, outcome: &Outcome) -> ExitCode {
    println!(
        "{} pictures ({} left out), {} vehicles; results: {}/paths.png paths.json dataset.tar",
        outcome.frames.len(),
        outcome.skipped.len(),
        outcome.paths.paths.len(),
        options.out
    );
    if let Some(note) = &outcome.paths.note {
        eprintln!("extract-frames: {}: no paths: {note}", options.video);
    }
    let Some(problem) = &outcome.problem else { return ExitCode::SUCCESS };
    let reason = chain(problem);
    eprintln!("extract-frames: {}: read only in part: {reason}", options.video);
    ExitCode::from(3)
}
