//! `score-seeds`: films scenes, runs the whole workflow on them natively, and prints the table of
//! the README: one row per seed and camera, and their sums.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use vehicle_paths_tools::boxes::{self, BoxScore};
use vehicle_paths_tools::pipeline;
use vehicle_paths_tools::scene::film::{Filming, film};
use vehicle_paths_tools::scene::truth::Truth;
use vehicle_paths_tools::score::lenient::{Lenient, lenient};
use vehicle_paths_tools::score::{Score, score};
use vision::functions::extract::Plan;
use vision::video::Video;

/// All pictures that the demo takes.
const PLAN: Plan = Plan { fps: 10.0, max_frames: u32::MAX, branches: 1 };

/// Film seeds, find the paths, print the accuracy.
#[derive(Parser)]
struct Options {
    /// First seed.
    from: u64,
    /// Last seed.
    to: u64,
    /// Cameras of each scene.
    #[arg(long, default_value_t = 2)]
    cameras: usize,
    /// Length of each scene.
    #[arg(long, default_value_t = 16.0)]
    seconds: f64,
    /// Keep scenes here, and use those that are there already.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What one camera gave.
struct Row {
    paths: Score,
    boxes: BoxScore,
    /// Present vehicles covered in the forgiving way, and the error in that way.
    lenient: (usize, f64),
}

fn main() -> Result<()> {
    let options = Options::parse();
    let temporary = tempfile::tempdir().context("make a temporary folder")?;
    let folder = options.keep.as_deref().unwrap_or(temporary.path());
    println!(
        "| seed, camera | present | found | invented | fragments | switches | error mean | error p95 \
         | MOTA | IDF1 | box recall | false boxes a picture | covered | error |"
    );
    println!("|{}", "---|".repeat(14));
    let mut rows = Vec::new();
    for seed in options.from..=options.to {
        let folder = folder.join(format!("seed-{seed}"));
        let truth = scene(&options, &folder, seed)?;
        for camera in 0..truth.cameras.len() {
            let row = run(&truth, camera, &folder)?;
            println!("| {seed}, {camera} {}", cells(&row));
            rows.push(row);
        }
    }
    println!("| all {}", cells(&sum(&rows)));
    Ok(())
}

/// The truth of a scene, filmed now unless it is there already.
fn scene(options: &Options, folder: &Path, seed: u64) -> Result<Truth> {
    if let Ok(json) = std::fs::read(folder.join("truth.json")) {
        let truth: Truth = serde_json::from_slice(&json)
            .with_context(|| format!("understand {}/truth.json", folder.display()))?;
        if truth.seed == seed && truth.cameras.len() == options.cameras {
            return Ok(truth);
        }
    }
    let filming =
        Filming { cameras: options.cameras, seconds: options.seconds, ..Filming::of_seed(seed) };
    film(folder, &filming)
}

fn run(truth: &Truth, camera: usize, folder: &Path) -> Result<Row> {
    let path = folder.join(&truth.cameras[camera].video);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut video = Video::open(BufReader::new(file))?;
    let homography = Some(truth.cameras[camera].homography);
    let mut archive = Vec::new();
    let (outcome, _) = pipeline::run(&mut video, PLAN, homography, &mut archive)?;
    let found = &outcome.paths.paths;
    let paths = score(truth, camera, found).context("the truth has no such camera")?;
    let Lenient { covered, mean_error_m } = lenient(truth, found);
    let covered = covered.iter().filter(|id| paths.present_ids.contains(id)).count();
    let boxes = boxes::score(truth, camera, archive.as_slice())?;
    Ok(Row { paths, boxes, lenient: (covered, mean_error_m) })
}

/// Counts are added, everything else is the mean of the rows.
fn sum(rows: &[Row]) -> Row {
    let count = |pick: fn(&Score) -> usize| rows.iter().map(|row| pick(&row.paths)).sum();
    let mean =
        |pick: fn(&Row) -> f64| rows.iter().map(pick).sum::<f64>() / rows.len().max(1) as f64;
    let paths = Score {
        present: count(|score| score.present),
        found: count(|score| score.found),
        missed: count(|score| score.missed),
        invented: count(|score| score.invented),
        fragments: count(|score| score.fragments),
        identity_switches: count(|score| score.identity_switches),
        mean_error_m: mean(|row| row.paths.mean_error_m),
        p95_error_m: mean(|row| row.paths.p95_error_m),
        mota: mean(|row| row.paths.mota),
        idf1: mean(|row| row.paths.idf1),
        present_ids: Vec::new(),
    };
    let boxes = BoxScore {
        boxes: rows.iter().map(|row| row.boxes.boxes).sum(),
        recall: mean(|row| row.boxes.recall),
        false_per_picture: mean(|row| row.boxes.false_per_picture),
    };
    let covered = rows.iter().map(|row| row.lenient.0).sum();
    Row { paths, boxes, lenient: (covered, mean(|row| row.lenient.1)) }
}

fn cells(row: &Row) -> String {
    let Row { paths, boxes, lenient } = row;
    format!(
        "| {} | {} | {} | {} | {} | {:.2} m | {:.2} m | {:.2} | {:.2} | {:.2} | {:.2} | {} | {:.2} m |",
        paths.present,
        paths.found,
        paths.invented,
        paths.fragments,
        paths.identity_switches,
        paths.mean_error_m,
        paths.p95_error_m,
        paths.mota,
        paths.idf1,
        boxes.recall,
        boxes.false_per_picture,
        lenient.0,
        lenient.1,
    )
}
