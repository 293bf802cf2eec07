//! What the daemon keeps for a function that waits for its code (`cwasi.protocol=openwhisk`): its engine, and its
//! outputs, in which ends of activations are marked.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::stdio::ContainerStdio;
use cwasi_config::Engine;
use cwasi_sys::reopen::append_without_waiting;
use cwasi_wire::control::Workload;
use cwasi_wire::log_line;

/// The line that ends an activation in a function's output.
const END: &[u8] = b"XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX\n";
/// Longest wait for room in a function's output.
const OUTPUT_WAIT: Duration = Duration::from_secs(5);
/// Time between two tries to write into a full output.
const OUTPUT_PAUSE: Duration = Duration::from_millis(5);
/// Longest line of a failed request in bytes: one write of a pipe.
const LINE_MAX: usize = 2048;

/// What the daemon keeps for a container that waits for its code.
#[derive(Debug)]
pub struct Action {
    engine: Option<Engine>,
    /// Open until the container ends: a reader of the output waits for the last writer.
    outputs: Mutex<Option<Outputs>>,
    dropped: Dropped,
}

/// The container's outputs, to which writes do not wait.
#[derive(Debug)]
struct Outputs {
    stdout: File,
    stderr: File,
    /// Lines on stderr have their times.
    is_file: bool,
}

/// Whether the last line of an output was dropped, because its reader left no room for it: the next one does not wait.
#[derive(Debug, Default)]
struct Dropped {
    stdout: AtomicBool,
    stderr: AtomicBool,
}

impl Dropped {
    const fn of(&self, output: Output) -> &AtomicBool {
        match output {
            Output::Stdout => &self.stdout,
            Output::Stderr => &self.stderr,
        }
    }
}

#[derive(Clone, Copy)]
enum Output {
    Stdout,
    Stderr,
}

impl Action {
    /// Of a workload that waits for its code; `None` of any other.
    #[must_use]
    pub fn of(
        workload: &Workload,
        engine: Option<Engine>,
        streams: &ContainerStdio,
    ) -> Option<Self> {
        let Workload::Function(launch) = workload else { return None };
        if !launch.awaits_code {
            return None;
        }
        let outputs = Outputs::open(streams);
        if let Err(error) = &outputs {
            tracing::warn!(function = %launch.identity, %error, "ends of activations are not marked");
        }
        Some(Self { engine, outputs: Mutex::new(outputs.ok()), dropped: Dropped::default() })
    }

    /// Closes the outputs.
    pub fn end(&self) {
        // As below.
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Its engine, which the builder has loaded.
    #[must_use]
    pub const fn engine(&self) -> Option<Engine> {
        self.engine
    }

    /// Marks the end of an activation in both outputs.
    pub async fn end_activation(&self) {
        self.write(Output::Stdout, END, OUTPUT_WAIT).await;
        self.write(Output::Stderr, END, OUTPUT_WAIT).await;
    }

    /// Writes a line of the runtime to stderr.
    pub async fn log(&self, text: &str) {
        let mut end = text.len().min(LINE_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.write(Output::Stderr, format!("cwasi: {}\n", &text[..end]).as_bytes(), OUTPUT_WAIT)
            .await;
    }

    /// Writes a line, which is dropped when its reader leaves no room for it for so long. Those after it do not wait
    /// until there is room again: an output that nobody reads delays one activation, not each.
    async fn write(&self, output: Output, line: &[u8], wait: Duration) {
        let dropped = self.dropped.of(output);
        let until = Instant::now() + wait;
        while self.try_write(output, line).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        {
            if dropped.load(Ordering::Relaxed) {
                return;
            }
            if Instant::now() > until {
                dropped.store(true, Ordering::Relaxed);
                tracing::warn!("lines of an action's output are dropped: its reader does not read");
                return;
            }
            sleep(OUTPUT_PAUSE).await;
        }
        dropped.store(false, Ordering::Relaxed);
    }

    fn try_write(&self, output: Output, line: &[u8]) -> io::Result<()> {
        // A file that is taken or not: a panic elsewhere leaves it consistent.
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(outputs) = outputs.as_mut() else { return Ok(()) };
        let timed = matches!(output, Output::Stderr) && outputs.is_file && line != END;
        let file = match output {
            Output::Stdout => &mut outputs.stdout,
            Output::Stderr => &mut outputs.stderr,
        };
        if timed {
            file.write_all(&log_line::with_time(SystemTime::now(), line))
        } else {
            file.write_all(line)
        }
    }
}

impl Outputs {
    fn open(streams: &ContainerStdio) -> io::Result<Self> {
        let [_, stdout, stderr] = streams.in_order();
        let open = |fd: BorrowedFd<'_>| append_without_waiting(&fd).map(File::from);
        let is_file = streams.stderr_is_file();
        Ok(Self { stdout: open(stdout)?, stderr: open(stderr)?, is_file })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    use super::*;

    /// An action whose outputs are one pipe, and its reader.
    fn action() -> (Action, File) {
        let (reader, writer) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).unwrap();
        let writer = File::from(writer);
        let stderr = writer.try_clone().unwrap();
        let outputs = Outputs { stdout: writer, stderr, is_file: false };
        let outputs = Mutex::new(Some(outputs));
        (Action { engine: None, outputs, dropped: Dropped::default() }, File::from(reader))
    }

    #[tokio::test]
    async fn an_output_that_nobody_reads_delays_one_activation() {
        const FOREVER: Duration = Duration::from_secs(1 << 20);
        let (action, mut reader) = action();
        while action.try_write(Output::Stdout, END).is_ok() {}
        action.write(Output::Stdout, END, Duration::ZERO).await;
        // This one would wait.
        action.write(Output::Stdout, END, FOREVER).await;
        let mut read = Vec::new();
        assert_eq!(reader.read_to_end(&mut read).unwrap_err().kind(), ErrorKind::WouldBlock);
        action.write(Output::Stdout, END, FOREVER).await;
        assert!(!action.dropped.of(Output::Stdout).load(Ordering::Relaxed), "it waits again");
        assert_eq!(reader.read_to_end(&mut read).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(read.ends_with(END));
    }
}
