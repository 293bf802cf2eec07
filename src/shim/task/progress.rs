//! What the user reads about a container's planning: on the container's stderr, in containerd's log and in the
//! daemon's.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

use super::container::BundleLog;
use super::stdio::ContainerStdio;
use cwasi_coordinator::Progress;
use cwasi_sys::reopen::append_without_waiting;
use cwasi_wire::log_line;

/// Writes what happens before a container exists. Never waits: a line for which its reader leaves no room is dropped.
#[derive(Debug)]
pub struct StartProgress {
    container: String,
    stderr: Option<File>,
    /// Its lines have their times.
    is_file: bool,
    log: BundleLog,
}

impl StartProgress {
    /// For a container with these streams, which stay its own.
    #[must_use]
    pub fn new(container: &str, bundle: &Path, streams: &ContainerStdio) -> Self {
        let stderr = append_without_waiting(&streams.stderr()).ok().map(File::from);
        let (container, is_file) = (container.to_owned(), streams.stderr_is_file());
        Self { container, stderr, is_file, log: BundleLog::open(bundle) }
    }

    /// containerd's log, which the container keeps.
    #[must_use]
    pub fn into_log(self) -> BundleLog {
        self.log
    }

    fn line(&self, line: &str) {
        let timed = self.is_file.then(|| log_line::with_time(SystemTime::now(), line.as_bytes()));
        if let Some(mut stderr) = self.stderr.as_ref() {
            // One that does not fit is dropped; the logs have it.
            let _dropped = stderr.write_all(timed.as_deref().unwrap_or(line.as_bytes()));
        }
    }
}

impl Progress for StartProgress {
    fn info(&self, text: &str) {
        tracing::info!(container = self.container, "{text}");
        self.log.line("info", &self.container, text);
        self.line(&format!("cwasi: {text}\n"));
    }

    fn warn(&self, text: &str) {
        tracing::warn!(container = self.container, "{text}");
        self.log.line("warning", &self.container, text);
        self.line(&format!("cwasi: warning: {text}\n"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::reaper::Reaper;
    use crate::task::stdio::logger::LoggedContainer;
    use crate::task::stdio::{Stdio, open::open};

    #[test]
    fn lines_are_written_or_dropped() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["err", "log"] {
            mkfifo(&dir.path().join(name), Mode::S_IRWXU).unwrap();
        }
        let reads = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
            options.open(dir.path().join(name)).unwrap()
        };
        let (mut err, mut log) = (reads("err"), reads("log"));
        let stderr = dir.path().join("err").display().to_string();
        let stdio = Stdio { stderr, ..Stdio::default() };
        let container = LoggedContainer { reaper: &Reaper::default(), namespace: "n", id: "c" };
        let (streams, _relay) = open(&stdio, container).unwrap();
        let progress = StartProgress::new("c", dir.path(), &streams);
        progress.info("compiling m");
        progress.warn("odd");
        let mut text = [0; 100];
        let mut next = |file: &mut File| {
            let len = file.read(&mut text).unwrap();
            String::from_utf8_lossy(&text[..len]).into_owned()
        };
        assert_eq!(next(&mut err), "cwasi: compiling m\ncwasi: warning: odd\n");
        let logged = next(&mut log);
        assert!(logged.contains("level=info runtime=cwasi container=c msg=\"compiling m\""));
        // No reader: a writer that waited would hang here.
        for _ in 0..10_000 {
            progress.info("a line that is repeated until the pipe is full");
        }
        let flags = nix::fcntl::fcntl(streams.stderr(), nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert!(!OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
    }
}
