//! The functions as their callers see them: wrong payloads, failing callees.

use super::*;
use crate::frame::Frame;
use crate::jpeg;
use crate::payload::{
    DatasetRequest, DatasetResponse, ProcessRequest, ProcessResponse, Recording, Shot, decode,
    encode,
};

fn nobody(target: &str, _: &[u8]) -> Result<Vec<u8>, CallFailed> {
    Err(CallFailed { target: target.to_owned(), reason: "nobody is there".to_owned() })
}

fn no_metadata(_: &[u8]) -> Result<String, String> {
    Err("the library is not there".to_owned())
}

#[test]
fn garbage_is_refused_by_every_function() {
    for payload in [&b""[..], b"hello", b"VP\x01\x63rest"] {
        assert!(process_frames(payload, &nobody).is_err());
        assert!(prepare_dataset(payload, &nobody, &no_metadata).is_err());
        assert!(reconstruct_paths(payload).is_err());
    }
}

#[test]
fn a_damaged_picture_is_named_by_its_number() {
    let shots = vec![Shot { number: 41, time_ms: 0, jpeg: b"not a jpeg" }];
    let request = encode(&ProcessRequest::Learn { shots }).unwrap();
    let error = process_frames(&request, &nobody).unwrap_err().to_string();
    assert!(error.contains("picture 41"), "{error}");
}

#[test]
fn a_part_says_what_its_pictures_are() {
    let picture = jpeg::encode(&Frame::grey(64, 48, 90)).unwrap();
    let collect = |jpeg| {
        let shots = vec![Shot { number: 7, time_ms: 0, jpeg }];
        encode(&DatasetRequest::Collect { shots }).unwrap()
    };
    let metadata = |image: &[u8]| image_metadata(image).map_err(|error| error.to_string());
    let answer = prepare_dataset(&collect(&picture), &nobody, &metadata).unwrap();
    let DatasetResponse::Part(part) = decode(&answer).unwrap() else {
        panic!("collecting answers with a part")
    };
    let text = String::from_utf8_lossy(&part);
    assert!(text.contains("metadata/000007.json"));
    assert!(text.contains(r#""images/000007.jpg":{"bytes""#) && text.contains(r#""width":64"#));
    let error = prepare_dataset(&collect(b"damaged"), &nobody, &metadata).unwrap_err().to_string();
    assert!(error.contains("picture 7"), "{error}");
}

#[test]
fn a_callee_that_is_not_there_is_the_callers_error() {
    let picture = jpeg::encode(&Frame::grey(64, 48, 90)).unwrap();
    let shot = |number| Shot { number, time_ms: number * 100, jpeg: &picture };
    let learn = encode(&ProcessRequest::Learn { shots: vec![shot(0), shot(1)] }).unwrap();
    let learned = process_frames(&learn, &nobody).unwrap();
    let ProcessResponse::Learned { background, .. } = decode(&learned).unwrap() else {
        panic!("learning answers with a background")
    };
    let request = ProcessRequest::Process { background, shots: vec![shot(2)] };
    let error = process_frames(&encode(&request).unwrap(), &nobody).unwrap_err().to_string();
    assert!(error.contains("prepare-dataset") && error.contains("nobody is there"), "{error}");
    let scene = picture.as_slice();
    let (frames, skipped) = (vec![], vec![]);
    let recording = Recording { width: 64, height: 48, homography: None, scene, frames, skipped };
    let finish = encode(&DatasetRequest::Finish(recording)).unwrap();
    let error = prepare_dataset(&finish, &nobody, &no_metadata).unwrap_err().to_string();
    assert!(error.contains("reconstruct-paths"), "{error}");
}
