//! The dataset: JPEG pictures and COCO annotations in one tar archive.
//!
//! The archive is written in parts, each a whole number of tar blocks, so that nobody ever holds
//! all pictures: parts in order, then [`end`], are the file.

use std::collections::HashMap;

use serde_json::{Value, json};
use thiserror::Error;

use crate::label::{Class, FrameLabels};
use crate::payload::Shot;
use crate::track::Path;

/// What the dataset says about itself. Who gets it does not see this repository.
const DESCRIPTION: &str = "Traffic pictures with machine-made labels; what moves is anonymized, people who stand still \
    and parked vehicles are not";

const BLOCK: usize = 512;

/// Why an archive entry cannot be written.
#[derive(Debug, Error)]
#[error("cannot name {name:?} in a tar archive")]
pub struct ArchiveError {
    /// The name.
    name: String,
    /// Why.
    #[source]
    source: std::io::Error,
}

/// Name of a picture within the archive.
pub fn picture_name(number: u32) -> String {
    format!("images/{number:06}.jpg")
}

/// One file as header, contents and padding.
pub fn entry(name: &str, contents: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    let mut header = tar::Header::new_ustar();
    let failed = |source| ArchiveError { name: name.to_owned(), source };
    header.set_path(name).map_err(failed)?;
    header.set_size(contents.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    let padded = contents.len().next_multiple_of(BLOCK);
    let mut out = Vec::with_capacity(BLOCK + padded);
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(contents);
    out.resize(BLOCK + padded, 0);
    Ok(out)
}

/// What ends an archive.
pub fn end() -> [u8; 2 * BLOCK] {
    [0; 2 * BLOCK]
}

/// Pictures as a part of the archive.
pub fn pictures(shots: &[Shot]) -> Result<Vec<u8>, ArchiveError> {
    let mut out = Vec::new();
    for shot in shots {
        out.extend(entry(&picture_name(shot.number), shot.jpeg)?);
    }
    Ok(out)
}

/// COCO annotations of all pictures but the skipped ones; boxes of a path carry its `track_id`.
pub fn annotations(
    frames: &[FrameLabels],
    skipped: &[u32],
    size: (u32, u32),
    paths: &[Path],
) -> Value {
    let tracks: HashMap<(u32, u32), u32> =
        paths.iter().flat_map(|path| path.labels.iter().map(|label| (*label, path.id))).collect();
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for frame in frames.iter().filter(|frame| !skipped.contains(&frame.number)) {
        images.push(json!({
            "id": frame.number,
            "file_name": picture_name(frame.number),
            "width": size.0,
            "height": size.1,
            "time_ms": frame.time_ms,
        }));
        for (label, index) in frame.labels.iter().zip(0..) {
            let track = tracks.get(&(frame.number, index)).copied();
            // What drives a path is a vehicle, whatever a single box looked like.
            let class = if track.is_some() { Class::Vehicle } else { label.class };
            annotations.push(json!({
                "id": annotations.len() + 1,
                "image_id": frame.number,
                "category_id": class.category().0,
                "bbox": [label.rect.left, label.rect.top, label.rect.width(), label.rect.height()],
                "area": label.rect.area(),
                "iscrowd": 0,
                "score": label.confidence,
                "track_id": track,
            }));
        }
    }
    let category = |class: Class| {
        let (id, name) = class.category();
        json!({ "id": id, "name": name, "supercategory": "road user" })
    };
    json!({
        "info": { "description": DESCRIPTION },
        "categories": [category(Class::Vehicle), category(Class::Person)],
        "images": images,
        "annotations": annotations,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::label::{Label, Rect};

    #[test]
    fn parts_and_end_are_an_archive() {
        let shot = |number, jpeg| Shot { number, time_ms: 0, jpeg };
        let mut whole = pictures(&[shot(0, b"first"), shot(1, &[7; 600])]).unwrap();
        whole.extend(entry("annotations.json", b"{}").unwrap());
        whole.extend(end());
        let mut names = Vec::new();
        for file in tar::Archive::new(whole.as_slice()).entries().unwrap() {
            let mut file = file.unwrap();
            let mut contents = Vec::new();
            file.read_to_end(&mut contents).unwrap();
            names.push((file.path().unwrap().display().to_string(), contents.len()));
        }
        let expected =
            [("images/000000.jpg", 5), ("images/000001.jpg", 600), ("annotations.json", 2)];
        assert_eq!(names, expected.map(|(name, size)| (name.to_owned(), size)));
    }

    #[test]
    fn a_tracked_box_is_a_vehicle_and_a_skipped_picture_is_absent() {
        let rect = Rect { left: 1.0, top: 2.0, right: 11.0, bottom: 32.0 };
        let label = Label { class: Class::Person, rect, confidence: 0.5, tone: [0; 3] };
        let frame = |number| FrameLabels { number, time_ms: number * 100, labels: vec![label] };
        let path = Path { id: 4, typical_speed: 30.0, points: vec![], labels: vec![(0, 0)] };
        let coco = annotations(&[frame(0), frame(1), frame(2)], &[1], (64, 48), &[path]);
        assert_eq!(coco["images"].as_array().unwrap().len(), 2);
        let boxes = coco["annotations"].as_array().unwrap();
        assert_eq!((&boxes[0]["category_id"], &boxes[0]["track_id"]), (&json!(1), &json!(4)));
        assert_eq!((&boxes[1]["category_id"], &boxes[1]["track_id"]), (&json!(2), &Value::Null));
        assert!(coco["info"]["description"].as_str().unwrap().contains("stand still"));
        assert_eq!(boxes[0]["bbox"], json!([1.0, 2.0, 10.0, 30.0]));
    }
}
