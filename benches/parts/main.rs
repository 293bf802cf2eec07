//! Benches of single parts of a call: frames, sockets, segments. The cost of an instance and its requests is measured
//! in processes of their own: `cargo test --test worker_life -- times`.
//!
//! `cargo bench --bench parts [-- NAME]`

use std::hint::black_box;
use std::os::fd::AsFd as _;

use criterion::{Criterion, Throughput};
use cwasi_modes::OutgoingPayload;
use cwasi_modes::local::{open_frame, send_as_is};
use cwasi_sys::segment::Segment;
use cwasi_sys::seqpacket;
use cwasi_wire::envelope::Request;
use cwasi_wire::frame::{self, FRAME_MAX, INLINE_MAX, PayloadRef};

/// Payload lengths that travel inside a frame, in bytes.
const INLINE: [usize; 2] = [64, INLINE_MAX];
/// Payload lengths that need a segment, in bytes.
const SEGMENTS: [usize; 2] = [2 << 20, 100 << 20];

fn request() -> Request {
    Request {
        call_id: vec![7; 16],
        target: "process-frames".to_owned(),
        remaining_us: 60_000_000,
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        attempt: 1,
        ..Request::default()
    }
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    let request = request();
    for len in INLINE {
        let payload = vec![7; len];
        group.bench_function(format!("encode/{len}"), |bencher| {
            bencher.iter(|| {
                frame::encode_head(black_box(&request), PayloadRef::Inline(&payload))
                    .expect("a small envelope")
            });
        });
        let mut message =
            frame::encode_head(&request, PayloadRef::Inline(&payload)).expect("a small envelope");
        message.extend(&payload);
        group.bench_function(format!("decode/{len}"), |bencher| {
            bencher.iter(|| {
                let frame = frame::decode(black_box(&message)).expect("a whole frame");
                frame.open::<Request>().expect("a request")
            });
        });
    }
    group.finish();
}

fn sockets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("socket");
    let (near, far) = seqpacket::pair().expect("a pair of sockets");
    let (request, mut buffer) = (request(), vec![0; FRAME_MAX]);
    for len in INLINE {
        let payload = vec![7; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("there/{len}"), |bencher| {
            bencher.iter(|| {
                let content = OutgoingPayload::Bytes(&payload);
                send_as_is(near.as_fd(), &request, content, &[], None).expect("sent");
                let message =
                    seqpacket::receive(far.as_fd(), &mut buffer, None).expect("a message");
                let frame = &buffer[..message.len];
                open_frame::<Request>(frame, message.descriptors, 0, u64::MAX).expect("a frame")
            });
        });
    }
    group.finish();
}

fn segments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("segment");
    group.sample_size(10);
    for len in SEGMENTS {
        let payload = vec![7; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("copy/{len}"), |bencher| {
            bencher.iter(|| Segment::copy_of(black_box(&payload)).expect("memory"));
        });
        let segment = Segment::copy_of(&payload).expect("memory");
        group.bench_function(format!("accept/{len}"), |bencher| {
            bencher.iter(|| {
                let fd = segment.as_fd().try_clone_to_owned().expect("a descriptor");
                Segment::accept(fd, len as u64).expect("sealed")
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for part in [frames, sockets, segments] {
        part(&mut criterion);
    }
    criterion.final_summary();
}
