//! Videos that are whole, cut, foreign or empty. The MJPEG file is made here; H.264 needs a real
//! encoder and is tested with a generated video in `tools/tests/pipeline.rs`.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn chunk(id: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut out = id.to_vec();
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    out.resize(out.len().next_multiple_of(2), 0);
    out
}

/// An AVI of grey pictures that get lighter, 25 a second.
fn avi(pictures: usize, codec: &[u8; 4]) -> Vec<u8> {
    let mut head = vec![0; 56];
    head[..4].copy_from_slice(&40_000u32.to_le_bytes());
    head[16..20].copy_from_slice(&(pictures as u32).to_le_bytes());
    head[32..36].copy_from_slice(&64u32.to_le_bytes());
    head[36..40].copy_from_slice(&48u32.to_le_bytes());
    let mut stream = b"vids".to_vec();
    stream.extend(codec);
    stream.resize(56, 0);
    let mut strl = b"strl".to_vec();
    strl.extend(chunk(b"strh", &stream));
    let mut hdrl = b"hdrl".to_vec();
    hdrl.extend(chunk(b"avih", &head));
    hdrl.extend(chunk(b"LIST", &strl));
    let mut movi = b"movi".to_vec();
    for number in 0..pictures {
        let jpeg = jpeg::encode(&Frame::grey(64, 48, 40 + number as u8 * 10)).unwrap();
        movi.extend(chunk(b"00dc", &jpeg));
    }
    let mut riff = b"AVI ".to_vec();
    riff.extend(chunk(b"LIST", &hdrl));
    riff.extend(chunk(b"LIST", &movi));
    chunk(b"RIFF", &riff)
}

/// How many frames come, and how it ends.
fn read(bytes: &[u8]) -> (usize, Option<VideoError>) {
    let mut video = match Video::open(Cursor::new(bytes)) {
        Ok(video) => video,
        Err(error) => return (0, Some(error)),
    };
    for count in 0.. {
        match video.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => return (count, None),
            Err(error) => return (count, Some(error)),
        }
    }
    unreachable!("a file has an end")
}

#[test]
fn a_whole_avi_gives_its_pictures_and_times() {
    let bytes = avi(5, b"MJPG");
    let mut video = Video::open(Cursor::new(&bytes)).unwrap();
    assert!((video.fps() - 25.0).abs() < 1e-9);
    let mut times = Vec::new();
    while let Some(picture) = video.next_frame().unwrap() {
        times.push(picture.time_ms);
        let frame = jpeg::decode(&picture.into_jpeg().unwrap()).unwrap();
        assert_eq!((frame.width, frame.height), (64, 48));
    }
    assert_eq!(times, [0, 40, 80, 120, 160]);
}

#[test]
fn a_cut_avi_gives_what_is_there_and_says_where_it_ends() {
    let bytes = avi(5, b"MJPG");
    let (count, error) = read(&bytes[..bytes.len() - 10]);
    assert_eq!(count, 4);
    let error = error.unwrap().to_string();
    assert!(error.contains("cut short") && error.contains("frame 4 of 5"), "{error}");
}

#[test]
fn empty_and_foreign_files_are_named_as_such() {
    assert!(matches!(read(b""), (0, Some(VideoError::Empty))));
    for foreign in [&b"x"[..], b"\x89PNG\r\n\x1a\nabcdefgh", b"RIFF\0\0\0\0WAVEfmt "] {
        let (count, error) = read(foreign);
        assert_eq!(count, 0);
        assert!(error.unwrap().to_string().contains("not a video"), "{foreign:?}");
    }
}

#[test]
fn another_codec_is_named_with_the_way_out() {
    let (_, error) = read(&avi(1, b"H263"));
    let error = error.unwrap().to_string();
    assert!(error.contains("H263") && error.contains("libx264"), "{error}");
}

#[test]
fn an_mp4_without_its_index_says_so() {
    let mut bytes = 24u32.to_be_bytes().to_vec();
    bytes.extend(b"ftypisom\0\0\0\0isomavc1");
    bytes.extend(5_000u32.to_be_bytes());
    bytes.extend(b"mdat and then nothing more");
    let (_, error) = read(&bytes);
    let error = error.unwrap().to_string();
    assert!(error.contains("ends before its index"), "{error}");
}

#[test]
fn sampling_keeps_the_rate() {
    let mut sampler = Sampler::new(10.0);
    let taken = (0..100).filter(|k| sampler.wants(k * 40)).count();
    assert_eq!(taken, 40);
    let mut all = Sampler::new(60.0);
    assert_eq!((0..25).filter(|k| all.wants(k * 40)).count(), 25);
}

proptest! {
    #[test]
    fn damage_anywhere_never_panics(at in 0usize..4000, value in any::<u8>(), cut in 0usize..4000) {
        let mut bytes = avi(3, b"MJPG");
        let length = bytes.len();
        bytes[at % length] = value;
        bytes.truncate(length - cut % length);
        let _ = read(&bytes);
    }
}
