//! Input that the daemon copies to a container, whose end it can so decide. Runs in the shim daemon.

use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// Bytes of input that are moved at once.
const INPUT_CHUNK: usize = 64 * 1024;

/// Moves the input until its writers are gone, `closed` comes, or the container does not read any more.
pub async fn copy_input(
    fifo: Receiver,
    mut pipe: impl AsyncWrite + Unpin,
    mut closed: oneshot::Receiver<()>,
) {
    let mut chunk = vec![0; INPUT_CHUNK];
    loop {
        let closing = tokio::select! {
            ready = fifo.readable() => {
                if ready.is_err() { return }
                false
            }
            _ = &mut closed => true,
        };
        if !copy_available(&fifo, &mut pipe, &mut chunk, closing).await || closing {
            return;
        }
    }
}

/// Moves what the fifo holds; false at its end.
async fn copy_available(
    fifo: &Receiver,
    pipe: &mut (impl AsyncWrite + Unpin),
    chunk: &mut [u8],
    closing: bool,
) -> bool {
    loop {
        // The reactor may not know yet of bytes that were written before the close.
        let read = if closing {
            nix::unistd::read(fifo, chunk).map_err(io::Error::from)
        } else {
            fifo.try_read(chunk)
        };
        match read {
            Ok(0) => return false,
            Ok(len) => {
                if pipe.write_all(&chunk[..len]).await.is_err() {
                    return false;
                }
            }
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}
