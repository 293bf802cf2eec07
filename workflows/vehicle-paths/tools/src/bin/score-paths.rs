//! `score-paths`: how good are reconstructed paths? Prints a table or JSON, and fails when a
//! threshold is missed.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Deserialize;
use vehicle_paths_tools::boxes::{self, BoxScore};
use vehicle_paths_tools::scene::truth::Truth;
use vehicle_paths_tools::score::{Score, score};

/// Compare paths.json (and dataset.tar) with the generator's truth.json.
#[derive(Parser)]
struct Options {
    /// The generator's truth.json.
    #[arg(long)]
    truth: PathBuf,
    /// Results of one camera: a directory with paths.json and, for the boxes, dataset.tar.
    #[arg(long)]
    results: PathBuf,
    #[arg(long, default_value_t = 0)]
    camera: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Fail when a smaller share of the vehicles present is found (0 to 1).
    #[arg(long)]
    min_found: Option<f64>,
    /// Fail when the mean path error is larger, metres.
    #[arg(long)]
    max_mean_error: Option<f64>,
    /// Fail when the 95th percentile of the path error is larger, metres.
    #[arg(long)]
    max_p95_error: Option<f64>,
    /// Fail when more paths follow no vehicle.
    #[arg(long)]
    max_invented: Option<usize>,
    /// Fail when more paths are fragments.
    #[arg(long)]
    max_fragments: Option<usize>,
    /// Fail when there are more identity switches.
    #[arg(long)]
    max_switches: Option<usize>,
}

#[derive(Deserialize)]
struct PathsFile {
    paths: Vec<vision::track::Path>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let truth: Truth = read(&options.truth)?;
    let paths: PathsFile = read(&options.results.join("paths.json"))?;
    let score = score(&truth, options.camera, &paths.paths)
        .with_context(|| format!("the truth has no camera {}", options.camera))?;
    let archive = options.results.join("dataset.tar");
    let boxes = match archive.exists() {
        true => {
            let file =
                File::open(&archive).with_context(|| format!("open {}", archive.display()))?;
            let score = boxes::score(&truth, options.camera, file);
            Some(score.with_context(|| format!("score {}", archive.display()))?)
        }
        false => None,
    };
    if options.json {
        let both = serde_json::json!({ "paths": score, "boxes": boxes });
        println!("{}", serde_json::to_string_pretty(&both)?);
    } else {
        print(&score, boxes.as_ref());
    }
    let failures = failures(&options, &score);
    if !failures.is_empty() {
        bail!("below the thresholds: {}", failures.join("; "));
    }
    Ok(())
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("understand {}", path.display()))
}

fn print(score: &Score, boxes: Option<&BoxScore>) {
    println!("vehicles present      {:>8}", score.present);
    println!("         found        {:>8}", score.found);
    println!("         missed       {:>8}", score.missed);
    println!("         invented     {:>8}", score.invented);
    println!("fragments             {:>8}", score.fragments);
    println!("identity switches     {:>8}", score.identity_switches);
    println!("path error, mean      {:>8.2} m", score.mean_error_m);
    println!("path error, p95       {:>8.2} m", score.p95_error_m);
    println!("MOTA                  {:>8.3}", score.mota);
    println!("IDF1                  {:>8.3}", score.idf1);
    if let Some(boxes) = boxes {
        println!("box recall, IoU 0.3   {:>8.3}  of {} boxes", boxes.recall, boxes.boxes);
        println!("false boxes a picture {:>8.3}", boxes.false_per_picture);
    }
}

/// Every threshold that is missed, in words.
fn failures(options: &Options, score: &Score) -> Vec<String> {
    let mut out = Vec::new();
    let share = score.found as f64 / score.present.max(1) as f64;
    if let Some(least) = options.min_found.filter(|least| share < *least) {
        out.push(format!("{} of {} vehicles found, wanted {least:.2}", score.found, score.present));
    }
    let mut at_most = |name: &str, is: f64, limit: Option<f64>| {
        if let Some(limit) = limit.filter(|limit| is > *limit) {
            out.push(format!("{name} {is:.2}, at most {limit:.2}"));
        }
    };
    at_most("mean path error (m)", score.mean_error_m, options.max_mean_error);
    at_most("p95 path error (m)", score.p95_error_m, options.max_p95_error);
    let count = |limit: Option<usize>| limit.map(|limit| limit as f64);
    at_most("invented paths", score.invented as f64, count(options.max_invented));
    at_most("fragments", score.fragments as f64, count(options.max_fragments));
    at_most("identity switches", score.identity_switches as f64, count(options.max_switches));
    out
}
