//! The functions as their callers see them: wrong payloads, failing callees.

use super::*;
use crate::frame::Frame;
use crate::jpeg;
use crate::label::{Class, FrameLabels, Label, Rect};
use crate::payload::{
    DatasetRequest, DatasetResponse, ProcessRequest, Recording, Shot, decode, encode,
};

/// Nobody can be called.
struct Nobody;

impl Runtime for Nobody {
    type Buffer = Vec<u8>;
    type Pending = String;
    type Answer = Vec<u8>;

    fn buffer(&self, len: usize) -> Vec<u8> {
        Vec::with_capacity(len)
    }

    fn start(&self, target: &str, _: Vec<u8>, _: Option<Join<'_>>) -> String {
        target.to_owned()
    }

    fn wait(&self, target: String) -> Result<Vec<u8>, CallFailed> {
        Err(CallFailed { target, reason: "nobody is there".to_owned() })
    }
}

fn no_metadata(_: &[u8]) -> Result<String, String> {
    Err("the library is not there".to_owned())
}

#[test]
fn garbage_is_refused_by_every_function() {
    for payload in [&b""[..], b"hello", b"VP\x01\x63rest"] {
        assert!(process_frames(payload, &Nobody).is_err());
        assert!(prepare_dataset(&[payload], &Nobody, &no_metadata).is_err());
        assert!(reconstruct_paths(payload).is_err());
    }
}

#[test]
fn a_damaged_picture_is_named_by_its_number() {
    let shots = vec![Shot { number: 41, time_ms: 0, jpeg: b"not a jpeg" }];
    let request = encode(&ProcessRequest::Learn { shots }).unwrap();
    let error = process_frames(&request, &Nobody).unwrap_err().to_string();
    assert!(error.contains("picture 41"), "{error}");
}

#[test]
fn a_part_says_what_its_pictures_are() {
    let picture = jpeg::encode(&Frame::grey(64, 48, 90)).unwrap();
    fn pictures(jpeg: &[u8]) -> Vec<u8> {
        let shots = vec![Shot { number: 7, time_ms: 0, jpeg }];
        encode(&DatasetRequest::Pictures { shots }).unwrap()
    }
    let label = Label {
        class: Class::Vehicle,
        rect: Rect { left: 0.0, top: 0.0, right: 9.0, bottom: 9.0 },
        confidence: 1.0,
        tone: [0; 3],
    };
    let labels = |number| {
        let frames = vec![FrameLabels { number, time_ms: 0, labels: vec![label] }];
        encode(&DatasetRequest::Labels { frames }).unwrap()
    };
    let metadata = |image: &[u8]| image_metadata(image).map_err(|error| error.to_string());
    let prepare = |jpeg: &[u8], number| {
        prepare_dataset(&[&pictures(jpeg), &labels(number)], &Nobody, &metadata)
    };
    let answer = prepare(&picture, 7).unwrap();
    let DatasetResponse::Part(part) = decode(&answer).unwrap() else {
        panic!("collecting answers with a part")
    };
    let text = String::from_utf8_lossy(&part);
    assert!(text.contains("metadata/000007.json"));
    assert!(text.contains(r#""images/000007.jpg":{"bytes""#) && text.contains(r#""width":64"#));
    assert!(text.contains(r#""people":0,"vehicles":1"#), "{text}");
    let error = prepare(b"damaged", 7).unwrap_err().to_string();
    assert!(error.contains("picture 7"), "{error}");
    let error = prepare(&picture, 8).unwrap_err();
    assert!(matches!(error, FunctionError::Mismatch { .. }), "{error}");
    let alone = prepare_dataset(&[&labels(7)], &Nobody, &metadata).unwrap_err();
    assert!(matches!(alone, FunctionError::Parts { count: 1 }), "{alone}");
}

#[test]
fn a_callee_that_is_not_there_is_the_callers_error() {
    let picture = jpeg::encode(&Frame::grey(64, 48, 90)).unwrap();
    let shot = |number| Shot { number, time_ms: number * 100, jpeg: &picture };
    let anonymize = |labelled| {
        let frames = vec![FrameLabels { number: labelled, time_ms: 0, labels: vec![] }];
        let request = ProcessRequest::Anonymize { frames, shots: vec![shot(2)] };
        process_frames(&encode(&request).unwrap(), &Nobody).unwrap_err()
    };
    let error = anonymize(2).to_string();
    assert!(error.contains("prepare-dataset") && error.contains("nobody is there"), "{error}");
    let error = anonymize(3);
    assert!(matches!(error, FunctionError::Mismatch { .. }), "{error}");
    let scene = picture.as_slice();
    let (frames, skipped) = (vec![], vec![]);
    let recording = Recording { width: 64, height: 48, homography: None, scene, frames, skipped };
    let finish = encode(&DatasetRequest::Finish(recording)).unwrap();
    let error = prepare_dataset(&[&finish], &Nobody, &no_metadata).unwrap_err().to_string();
    assert!(error.contains("reconstruct-paths"), "{error}");
}
