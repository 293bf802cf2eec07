//! `run-native`: the workflow on one video without any sandbox, for developing and as the
//! reference for the functions.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use vehicle_paths_tools::pipeline;
use vision::functions::extract::Plan;
use vision::functions::options;
use vision::video::Video;

/// Run the whole workflow natively.
#[derive(Parser)]
struct Options {
    /// H.264 in MP4 or Motion JPEG in AVI.
    video: PathBuf,
    /// Where paths.png, paths.json and dataset.tar go.
    #[arg(long)]
    out: PathBuf,
    /// JSON with the camera's homography; the generator's truth.json will do.
    #[arg(long)]
    homography: Option<PathBuf>,
    /// Which camera of that file.
    #[arg(long, default_value_t = 0)]
    camera: usize,
    /// Pictures sampled a second.
    #[arg(long, default_value_t = 10.0)]
    fps: f64,
    /// Stop after so many sampled pictures.
    #[arg(long, default_value_t = u32::MAX)]
    max_frames: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("create {}", options.out.display()))?;
    let homography = match &options.homography {
        Some(path) => {
            let json = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            Some(options::homography(&json, options.camera)?)
        }
        None => None,
    };
    let file =
        File::open(&options.video).with_context(|| format!("open {}", options.video.display()))?;
    let tar = options.out.join("dataset.tar");
    let mut archive =
        BufWriter::new(File::create(&tar).with_context(|| format!("create {}", tar.display()))?);
    let started = Instant::now();
    let mut video = Video::open(BufReader::new(file))?;
    let plan = Plan { fps: options.fps, max_frames: options.max_frames, branches: 1 };
    let (outcome, traffic) = pipeline::run(&mut video, plan, homography, &mut archive)?;
    archive.flush().context("write the dataset")?;
    std::fs::write(options.out.join("paths.png"), &outcome.paths.picture)?;
    let found = &outcome.paths;
    let json = serde_json::json!({
        "paths": found.paths, "homography": homography, "note": found.note,
    });
    std::fs::write(options.out.join("paths.json"), serde_json::to_vec(&json)?)?;
    println!(
        "{} pictures ({} left out), {} vehicles, {:.1} s, results in {}",
        outcome.frames.len(),
        outcome.skipped.len(),
        outcome.paths.paths.len(),
        started.elapsed().as_secs_f64(),
        options.out.display()
    );
    for (callee, (calls, sent, received)) in traffic {
        println!(
            "  {callee}: {calls} calls, {:.1} MB sent, {:.1} MB back",
            sent as f64 / 1e6,
            received as f64 / 1e6
        );
    }
    if let Some(note) = &outcome.paths.note {
        println!("no paths: {note}");
    }
    if let Some(problem) = outcome.problem {
        anyhow::bail!("the video could not be read to its end: {problem}");
    }
    Ok(())
}
