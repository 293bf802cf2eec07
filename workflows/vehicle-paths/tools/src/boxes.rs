//! Compares a dataset's boxes with the ground truth: how many visible road users have a box, and
//! how many boxes show nothing.

use std::collections::HashMap;
use std::io::Read;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vision::label::Rect;
use vision::track::assign::assign;

use crate::scene::truth::Truth;

/// Overlap from which a box is right.
const LEAST_IOU: f32 = 0.3;
/// Smallest boxes that must be found, pixels.
const LEAST_WIDTH: f32 = 14.0;
const LEAST_HEIGHT: f32 = 14.0;
/// Least visible share of what must be found.
const LEAST_VISIBLE: f32 = 0.4;

/// The figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxScore {
    /// Boxes that must be found: vehicles and people, large and visible enough.
    pub boxes: usize,
    /// Share of them that was found.
    pub recall: f64,
    /// Boxes per picture that overlap nobody.
    pub false_per_picture: f64,
}

#[derive(Deserialize)]
struct Coco {
    images: Vec<Image>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Image {
    id: u32,
    time_ms: u32,
}

#[derive(Deserialize)]
struct Annotation {
    image_id: u32,
    bbox: [f32; 4],
}

/// Scores the annotations within a dataset's archive (`dataset.tar`).
pub fn score(truth: &Truth, camera: usize, archive: impl Read) -> Result<BoxScore> {
    let coco = annotations(archive)?;
    let frames = &truth.cameras.get(camera).context("no such camera in the truth")?.frames;
    let mut by_image: HashMap<u32, Vec<Rect>> = HashMap::new();
    for annotation in &coco.annotations {
        by_image.entry(annotation.image_id).or_default().push(rect(annotation.bbox));
    }
    let (mut wanted, mut found, mut wrong) = (0, 0, 0);
    for image in &coco.images {
        let number = (f64::from(image.time_ms) * truth.fps / 1000.0).round() as usize;
        let Some(seen) = frames.get(number) else { continue };
        let boxes = by_image.remove(&image.id).unwrap_or_default();
        let must: Vec<Rect> = seen
            .iter()
            .filter(|one| one.visible >= LEAST_VISIBLE)
            .map(|one| rect(one.bbox))
            .filter(|rect| rect.width() >= LEAST_WIDTH && rect.height() >= LEAST_HEIGHT)
            .collect();
        let costs: Vec<Vec<f64>> = must
            .iter()
            .map(|a| boxes.iter().map(|b| f64::from(1.0 - a.iou(b))).collect())
            .collect();
        let matched = assign(&costs, f64::from(1.0 - LEAST_IOU));
        wanted += must.len();
        found += matched.iter().flatten().count();
        let is_wrong = |(index, one): &(usize, &Rect)| {
            let any = seen.iter().any(|other| rect(other.bbox).iou(one) >= LEAST_IOU);
            !matched.contains(&Some(*index)) && !any
        };
        wrong += boxes.iter().enumerate().filter(is_wrong).count();
    }
    Ok(BoxScore {
        boxes: wanted,
        recall: found as f64 / wanted.max(1) as f64,
        false_per_picture: wrong as f64 / coco.images.len().max(1) as f64,
    })
}

fn rect(bbox: [f32; 4]) -> Rect {
    let [left, top, width, height] = bbox;
    Rect { left, top, right: left + width, bottom: top + height }
}

fn annotations(archive: impl Read) -> Result<Coco> {
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry.context("read the archive")?;
        if entry.path_bytes().as_ref() == b"annotations.json" {
            return serde_json::from_reader(entry).context("understand annotations.json");
        }
    }
    anyhow::bail!("the archive has no annotations.json")
}
