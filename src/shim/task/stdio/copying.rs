//! Output that the daemon copies: from terminals, and from exec'd processes to containerd's fifos. Runs in the shim
//! daemon.
//!
//! An exec'd process may leave others in the container that keep its streams. containerd reads a fifo to its end before
//! it forgets a process, so the end has to come when the process is deleted: only a copy can be ended. With a
//! container's init all its processes end, so init's output is the fifo itself.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinSet;

use cwasi_sys::seqpacket::unread;

/// Longest wait for the rest of an output.
const OUTPUT_MAX: Duration = Duration::from_secs(2);
/// Between two looks whether an output was read.
const POLL: Duration = Duration::from_millis(2);

/// A pipe to a fifo, before it is copied.
#[derive(Debug)]
pub struct OutputPipe {
    pipe: PipeReader,
    fifo: OwnedFd,
}

impl OutputPipe {
    /// A pipe whose content goes to `fifo`, and its end for the process.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn new(fifo: OwnedFd) -> io::Result<(Self, OwnedFd)> {
        let (pipe, writer) = io::pipe()?;
        Ok((Self { pipe, fifo }, writer.into()))
    }

    /// Starts copying. Called within the runtime.
    ///
    /// # Errors
    /// When the reactor takes no more descriptors.
    pub fn serve(self, copying: &mut JoinSet<()>) -> io::Result<()> {
        let mut pipe = Receiver::from_owned_fd(self.pipe.into())?;
        let mut fifo = Sender::from_owned_fd(self.fifo)?;
        copying.spawn(async move {
            if let Err(error) = tokio::io::copy(&mut pipe, &mut fifo).await {
                tracing::debug!(%error, "an output ends");
            }
        });
        Ok(())
    }
}

/// True for a pipe or a fifo.
///
/// # Errors
/// When the descriptor's type cannot be read.
pub fn is_pipe(descriptor: &OwnedFd) -> io::Result<bool> {
    Ok(nix::sys::stat::fstat(descriptor)?.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// `output`, a fifo or a file, for the reactor.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn sink(output: OwnedFd) -> io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
    Ok(if is_pipe(&output)? {
        Box::new(Sender::from_owned_fd(output)?)
    } else {
        Box::new(tokio::fs::File::from_std(output.into()))
    })
}

/// Waits for what an ended process still has to say, for a bounded time, and ends the copying: another process may have
/// its streams, or has no reader.
pub async fn drain(mut copying: JoinSet<()>) {
    let all = async { while copying.join_next().await.is_some() {} };
    if tokio::time::timeout(OUTPUT_MAX, all).await.is_err() {
        copying.shutdown().await;
    }
}

/// Waits until the client has read these outputs, for a bounded time: containerd's client opens them in the background,
/// and gives up what it has not opened when its process is deleted.
pub async fn until_read(outputs: &[OwnedFd]) {
    let is_unread = |output: &OwnedFd| unread(output.as_fd()).is_some_and(|bytes| bytes > 0);
    let all = async {
        while outputs.iter().any(is_unread) {
            tokio::time::sleep(POLL).await;
        }
    };
    // A client that is gone reads nothing.
    let _bounded = tokio::time::timeout(OUTPUT_MAX, all).await;
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use super::*;

    /// A pipe that is copied, its end for the process, and the reader's end of the fifo.
    fn copied(copying: &mut JoinSet<()>) -> (File, PipeReader) {
        let (reader, fifo) = io::pipe().unwrap();
        let (pipe, end) = OutputPipe::new(fifo.into()).unwrap();
        pipe.serve(copying).unwrap();
        (end.into(), reader)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_of_an_output_arrives_before_a_drain_returns() {
        let mut copying = JoinSet::new();
        let (mut process, mut reader) = copied(&mut copying);
        let bytes: Vec<u8> = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
        let sent = bytes.clone();
        let writing = std::thread::spawn(move || process.write_all(&sent).unwrap());
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        tokio::task::spawn_blocking(|| writing.join().unwrap()).await.unwrap();
        drain(copying).await;
        let read = tokio::task::spawn_blocking(|| reading.join().unwrap()).await.unwrap();
        assert!(read == bytes, "{} of {} bytes", read.len(), bytes.len());
    }

    #[tokio::test]
    async fn an_output_is_awaited_until_its_client_has_read_it() {
        let (mut client, mut process) = io::pipe().unwrap();
        let outputs = [OwnedFd::from(client.try_clone().unwrap())];
        process.write_all(b"out").unwrap();
        let waiting = until_read(&outputs);
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            () = &mut waiting => panic!("nobody has read it"),
            () = std::future::ready(()) => {}
        }
        client.read_exact(&mut [0; 3]).unwrap();
        waiting.await;
        until_read(&outputs).await;
    }
}
