//! Messages of callers with their descriptors, as sandbox init and workers open them (`modes::local`).
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use cwasi_fuzz::memory::{PROTOBUF, bounded_beside};
use cwasi_fuzz::private::{Opened, open_request};
use cwasi_modes::Payload;
use cwasi_modes::local::open_frame;
use cwasi_sys::segment::Segment;
use cwasi_wire::envelope::Hello;
use cwasi_wire::frame::{PayloadRef, decode};
use libfuzzer_sys::fuzz_target;

/// Largest payload that the receiver takes.
const LIMIT: u64 = 4096;
/// Length of the segment that a caller may send.
const SEGMENT_LEN: usize = 256;

/// What a caller may send along: a sealed segment, a pipe, a file that is neither.
fn descriptor(kind: u8) -> OwnedFd {
    static KINDS: OnceLock<[OwnedFd; 3]> = OnceLock::new();
    let kinds = KINDS.get_or_init(|| {
        let segment = Segment::copy_of(&[7; SEGMENT_LEN]).expect("memory");
        let (pipe, _) = std::io::pipe().expect("a pipe");
        let file = tempfile::tempfile().expect("a file");
        [segment.as_fd().try_clone_to_owned().expect("a descriptor"), pipe.into(), file.into()]
    });
    kinds[usize::from(kind) % kinds.len()].try_clone().expect("a descriptor")
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, message)) = data.split_first() else { return };
    let (count, lends) = (choice & 3, choice & 4 != 0);
    let descriptors: Vec<OwnedFd> = (0..count).map(|at| descriptor(choice >> (3 + at))).collect();
    let expected = decode(message).ok();
    if count == 0
        && let Ok(hello) = open_frame::<Hello>(message, Vec::new(), 0, 0)
    {
        let payload = expected.map(|frame| frame.payload.len());
        assert_eq!((payload, hello.payload.len()), (Some(0), 0), "a hello has no payload");
        return;
    }
    let opened =
        bounded_beside(PROTOBUF, message, 16, || open_request(message, descriptors, lends, LIMIT));
    match opened {
        Opened::Request(id, request, payload) => {
            let frame = expected.expect("a request is a frame");
            assert_eq!(request.id(), Some(id));
            assert!(payload.len() <= LIMIT && payload.len() == frame.payload.len());
            assert_eq!(frame.payload.descriptors(), usize::from(count));
            match (&payload, frame.payload) {
                (Payload::Inline(_), PayloadRef::Inline(_)) => {}
                (Payload::Segment(_), PayloadRef::Segment(_)) => {}
                (Payload::Segment(segment), PayloadRef::Leased(_)) => {
                    assert!(lends && segment.token().is_some());
                }
                (Payload::Segment(segment), PayloadRef::LeasedToOne(_)) => {
                    assert!(lends && segment.is_for_one_reader());
                }
                _ => panic!("the payload is not what the frame says"),
            }
            let bytes = payload.into_vec().expect("an accepted payload can be read");
            if let PayloadRef::Inline(inline) = frame.payload {
                assert_eq!(bytes, inline);
            } else {
                assert!(bytes.len() <= SEGMENT_LEN && bytes.iter().all(|byte| *byte == 7));
            }
        }
        Opened::Refused(_, error) => {
            let length = expected.map_or(0, |frame| frame.payload.len());
            assert!(length > LIMIT, "refused for its {length} bytes: {error}");
        }
        Opened::Fault => {}
    }
});
