//! Messages on a direct connection (`cwasi_direct::connection`), whatever their pieces.
#![no_main]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use cwasi_direct::connection::read_message;
use cwasi_direct::tls::shim_of;
use cwasi_wire::network::MESSAGE_MAX;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that come in pieces of this length.
struct Pieces<'a> {
    left: &'a [u8],
    length: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let count = self.length.min(self.left.len()).min(buffer.remaining());
        let (piece, left) = self.left.split_at(count);
        buffer.put_slice(piece);
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((length, bytes)) = data.split_first() else { return };
    let read = |length: usize| {
        let mut pieces = Pieces { left: bytes, length };
        let mut messages = Vec::new();
        let reading = async {
            while let Ok(Some((kind, message))) = read_message(&mut pieces).await {
                assert!(message.len() <= MESSAGE_MAX);
                messages.push((kind, message));
            }
        };
        let polled = std::pin::pin!(reading).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(()));
        messages
    };
    assert_eq!(read(usize::from(*length).max(1)), read(usize::MAX), "pieces change nothing");
    if let Some(shim) = std::str::from_utf8(bytes).ok().and_then(shim_of) {
        assert!(!shim.contains(['/', '.']), "it is the name of a file");
    }
});
