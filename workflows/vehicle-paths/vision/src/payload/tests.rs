//! Every message comes back as it was sent; nothing that is not a message does harm.

use proptest::prelude::*;

use super::*;
use crate::label::{Class, Label, Rect};

fn label() -> impl Strategy<Value = Label> {
    (any::<bool>(), any::<[f32; 4]>(), 0.0..1.0f32, any::<[u8; 3]>()).prop_map(
        |(vehicle, sides, confidence, tone)| Label {
            class: if vehicle { Class::Vehicle } else { Class::Person },
            rect: Rect { left: sides[0], top: sides[1], right: sides[2], bottom: sides[3] },
            confidence,
            tone,
        },
    )
}

fn frames() -> impl Strategy<Value = Vec<FrameLabels>> {
    let frame = (any::<u32>(), any::<u32>(), prop::collection::vec(label(), 0..6))
        .prop_map(|(number, time_ms, labels)| FrameLabels { number, time_ms, labels });
    prop::collection::vec(frame, 0..8)
}

proptest! {
    #[test]
    fn shots_come_back(
        jpegs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10),
    ) {
        let shots: Vec<Shot> = jpegs
            .iter()
            .zip(7..)
            .map(|(jpeg, number)| Shot { number, time_ms: number * 100, jpeg })
            .collect();
        let message = DatasetRequest::Pictures { shots };
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<DatasetRequest>(&bytes).unwrap(), message);
    }

    #[test]
    fn recordings_come_back(
        frames in frames(),
        scene in prop::collection::vec(any::<u8>(), 0..50),
        homography in prop::option::of(any::<[f64; 9]>()),
    ) {
        prop_assume!(homography.is_none_or(|h| h.iter().all(|value| !value.is_nan())));
        prop_assume!(frames.iter().flat_map(|f| &f.labels).all(|l| !l.rect.area().is_nan()));
        let skipped = vec![3];
        let message = Recording { width: 8, height: 6, homography, scene: &scene, frames, skipped };
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<Recording>(&bytes).unwrap(), message);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        kind in 1u8..7,
    ) {
        let mut bytes = bytes;
        if bytes.len() >= 4 && bytes[0].is_multiple_of(2) {
            bytes[..4].copy_from_slice(&[b'V', b'P', VERSION, kind]);
        }
        let _ = decode::<ProcessRequest>(&bytes);
        let _ = decode::<DatasetRequest>(&bytes);
        let _ = decode::<Recording>(&bytes);
        let _ = decode::<PathsResponse>(&bytes);
    }

    #[test]
    fn a_cut_message_is_an_error(scene in prop::collection::vec(any::<u8>(), 1..50), cut in 0.0..1.0) {
        let message = Recording {
            width: 8, height: 6, homography: None, scene: &scene, frames: vec![], skipped: vec![],
        };
        let bytes = encode(&message).unwrap();
        let at = ((bytes.len() - 1) as f64 * cut) as usize;
        prop_assert!(decode::<Recording>(&bytes[..at]).is_err());
    }
}

#[test]
fn each_way_of_being_wrong_has_its_words() {
    let answer = PathsResponse { paths: vec![], note: None, picture: vec![1, 2] };
    let bytes = encode(&answer).unwrap();
    assert_eq!(bytes.capacity(), bytes.len(), "the length is known before anything is written");
    let refused = |bytes: &[u8]| decode::<PathsResponse>(bytes).unwrap_err();
    assert_eq!(refused(b"VP"), PayloadError::Short { bytes: 2 });
    assert_eq!(refused(b"GET / HTTP"), PayloadError::Foreign { start: *b"GE" });
    let mut newer = bytes.clone();
    newer[2] = 9;
    assert_eq!(refused(&newer), PayloadError::Version { is: 9 });
    let error = decode::<Recording>(&bytes).unwrap_err();
    assert!(error.to_string().contains("was the right function called"), "{error}");
    let mut longer = bytes;
    longer.push(0);
    assert!(refused(&longer).to_string().contains("left over"));
}

#[test]
fn too_many_pictures_are_refused_when_written() {
    let shots = vec![Shot { number: 0, time_ms: 0, jpeg: &[] }; MAX_PICTURES + 1];
    let error = encode(&DatasetRequest::Pictures { shots }).unwrap_err();
    assert!(error.to_string().contains("smaller chunks"), "{error}");
}
