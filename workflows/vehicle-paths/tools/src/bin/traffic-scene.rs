//! `traffic-scene`: renders a synthetic street to compressed video with ground truth beside it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use vehicle_paths_tools::scene::film::{Codec, Filming, film};

/// Render a synthetic T-junction to video, with ground truth.
#[derive(Parser)]
struct Options {
    /// Directory for cam0.mp4 (or .avi), ..., and truth.json.
    #[arg(long)]
    out: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 16.0)]
    seconds: f64,
    #[arg(long, default_value_t = 20.0)]
    fps: f64,
    #[arg(long, default_value_t = 1280)]
    width: usize,
    #[arg(long, default_value_t = 720)]
    height: usize,
    /// 1 to 3.
    #[arg(long, default_value_t = 1)]
    cameras: usize,
    /// Vehicles arriving a second.
    #[arg(long, default_value_t = 0.55)]
    rate: f64,
    #[arg(long, value_enum, default_value = "h264")]
    codec: Codec,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let filming = Filming {
        seed: options.seed,
        seconds: options.seconds,
        fps: options.fps,
        size: (options.width, options.height),
        cameras: options.cameras,
        rate: options.rate,
        codec: options.codec,
    };
    let truth = film(&options.out, &filming)?;
    println!(
        "{} vehicles, {} cameras, {}/truth.json",
        truth.vehicles.len(),
        options.cameras,
        options.out.display()
    );
    Ok(())
}
