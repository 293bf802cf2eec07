//! Arguments of `extract-frames`, and the homography file.

use serde_json::Value;
use thiserror::Error;

use crate::geometry::{Matrix3, invert};

/// How to call it.
pub const USAGE: &str = "usage: extract-frames VIDEO [--out DIR] [--fps RATE] [--homography FILE] [--camera N] [--max-frames N] [--branches N]";

/// Why the arguments cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptionsError {
    /// Neither a known option nor the one video.
    #[error("unexpected argument {argument:?}; {USAGE}")]
    Unexpected {
        /// It.
        argument: String,
    },
    /// An option without or with a wrong value.
    #[error("{option} needs {needs}, not {is:?}; {USAGE}")]
    Value {
        /// The option.
        option: &'static str,
        /// What it takes.
        needs: &'static str,
        /// What it was given.
        is: String,
    },
    /// No video was named.
    #[error("no video given; {USAGE}")]
    NoVideo,
    /// The homography file has another form.
    #[error(
        "no homography for camera {camera} in this file: give a JSON array of nine numbers, row by row, that take world metres (x, y, 1) to pixels, or an object with \"homography\" or \"cameras\""
    )]
    Homography {
        /// Which camera was asked for.
        camera: usize,
    },
}

/// What `extract-frames` is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The video's path.
    pub video: String,
    /// Where results go.
    pub out: String,
    /// Pictures sampled a second.
    pub fps: f64,
    /// A JSON file with the camera's homography.
    pub homography: Option<String>,
    /// Which camera of that file.
    pub camera: usize,
    /// Stop after so many sampled pictures.
    pub max_frames: u32,
    /// Chunks of pictures that are anonymized at a time.
    pub branches: usize,
}

/// Chunks that are anonymized at a time when nobody says.
const BRANCHES: usize = 4;
/// The most of them.
const BRANCHES_MAX: usize = 64;

impl Options {
    /// Reads arguments, without the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, OptionsError> {
        let mut options = Self {
            video: String::new(),
            out: "/out".to_owned(),
            fps: 10.0,
            homography: None,
            camera: 0,
            max_frames: u32::MAX,
            branches: BRANCHES,
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--out" => options.out = value(&mut arguments, "--out", "a directory", Some)?,
                "--homography" => {
                    let file = value(&mut arguments, "--homography", "a JSON file", Some)?;
                    options.homography = Some(file);
                }
                "--fps" => {
                    let rate = |text: String| {
                        text.parse().ok().filter(|fps: &f64| (0.1..=60.0).contains(fps))
                    };
                    options.fps = value(&mut arguments, "--fps", "a rate from 0.1 to 60", rate)?;
                }
                "--camera" => {
                    let number = |text: String| text.parse().ok();
                    options.camera = value(&mut arguments, "--camera", "a number from 0", number)?;
                }
                "--max-frames" => {
                    let count = |text: String| text.parse().ok().filter(|count| *count > 0);
                    options.max_frames = value(&mut arguments, "--max-frames", "a count", count)?;
                }
                "--branches" => {
                    let count = |text: String| {
                        text.parse().ok().filter(|count| (1..=BRANCHES_MAX).contains(count))
                    };
                    options.branches =
                        value(&mut arguments, "--branches", "a count from 1 to 64", count)?;
                }
                _ if options.video.is_empty() && !argument.starts_with('-') => {
                    options.video = argument;
                }
                _ => return Err(OptionsError::Unexpected { argument }),
            }
        }
        if options.video.is_empty() {
            return Err(OptionsError::NoVideo);
        }
        Ok(options)
    }
}

fn value<T>(
    arguments: &mut impl Iterator<Item = String>,
    option: &'static str,
    needs: &'static str,
    read: impl Fn(String) -> Option<T>,
) -> Result<T, OptionsError> {
    let is = arguments.next().filter(|text| !text.is_empty()).unwrap_or_default();
    let missing = is.is_empty();
    read(is.clone()).filter(|_| !missing).ok_or(OptionsError::Value { option, needs, is })
}

/// Finds the homography in a JSON text: nine numbers, `{"homography": [...]}`, or
/// `{"cameras": [{"homography": [...]}, ...]}` as the scene generator writes.
pub fn homography(json: &[u8], camera: usize) -> Result<Matrix3, OptionsError> {
    let missing = OptionsError::Homography { camera };
    let Ok(whole) = serde_json::from_slice::<Value>(json) else { return Err(missing) };
    let of_camera = &whole["cameras"][camera]["homography"];
    let found = [&whole, &whole["homography"], of_camera].into_iter().find_map(Value::as_array);
    let numbers: Option<Vec<f64>> = found.and_then(|list| list.iter().map(Value::as_f64).collect());
    numbers
        .and_then(|numbers| Matrix3::try_from(numbers).ok())
        .filter(|matrix| invert(matrix).is_some())
        .ok_or(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, OptionsError> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_in_any_order() {
        let options = parse("--fps 5 /in/a.mp4 --out /o --homography h.json --camera 1").unwrap();
        assert_eq!((options.video.as_str(), options.out.as_str()), ("/in/a.mp4", "/o"));
        assert_eq!((options.fps, options.camera), (5.0, 1));
    }

    #[test]
    fn wrong_options_are_named() {
        assert_eq!(parse(""), Err(OptionsError::NoVideo));
        for (line, word) in [
            ("a.mp4 b.mp4", "b.mp4"),
            ("a.mp4 --fps", "--fps"),
            ("a.mp4 --fps 1000", "1000"),
            ("a.mp4 --speed 3", "--speed"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("usage"), "{line}: {error}");
        }
    }

    #[test]
    fn homographies_in_three_forms() {
        let nine = "[1,0,5, 0,1,6, 0,0,1]";
        let expected = [1.0, 0.0, 5.0, 0.0, 1.0, 6.0, 0.0, 0.0, 1.0];
        for text in [
            nine.to_owned(),
            format!("{{\"homography\":{nine}}}"),
            format!("{{\"cameras\":[{{\"homography\":{nine}}}]}}"),
        ] {
            assert_eq!(homography(text.as_bytes(), 0), Ok(expected));
        }
        for text in ["", "[1,2]", "{\"cameras\":[]}", "[0,0,0,0,0,0,0,0,0]"] {
            assert!(homography(text.as_bytes(), 0).is_err(), "{text}");
        }
    }
}
