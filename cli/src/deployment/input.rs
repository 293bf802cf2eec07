//! The command's stdin as that of the first primary: what is piped into `cwasi run` arrives there, and so does its end.
//!
//! A thread of its own copies, because a read of a file or a terminal cannot be given up. It ends with the process.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// stdin, until a primary has it.
#[derive(Debug, Default)]
pub(super) struct Input {
    is_taken: AtomicBool,
}

impl Input {
    /// A fifo in `folder` with the command's stdin, for the first primary that asks. None for later ones, and none for a
    /// terminal: the command does not wait for somebody to type.
    ///
    /// # Errors
    /// When the fifo cannot be made.
    pub(super) fn take(&self, folder: &Path) -> io::Result<Option<PathBuf>> {
        if io::stdin().is_terminal() || self.is_taken.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let path = folder.join("in");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let fifo = path.clone();
        std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // Opened when the function's shim has opened it. A function that ends before it has read all is its own
            // business.
            let _ended = OpenOptions::new()
                .write(true)
                .open(fifo)
                .and_then(|mut fifo| io::copy(&mut io::stdin().lock(), &mut fifo));
        })?;
        Ok(Some(path))
    }
}
