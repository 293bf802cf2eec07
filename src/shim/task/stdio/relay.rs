//! The daemon's part of a process's streams while it runs: copies input and output, resizes the terminal.

use std::io;
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::copying::{OutputPipe, drain, until_read};
use super::input::copy_input;
use super::logger::Logger;
use super::rotated_log::LogPipe;
use super::terminal::Terminal;
use cwasi_sys::terminal_size::Size;

/// The daemon's descriptors of a process's streams, and the tasks that copy between them.
#[derive(Debug, Default)]
pub struct StdioRelay {
    pub(super) input: Option<Input>,
    /// Read ends of output fifos, kept open.
    pub(super) outputs: Vec<OwnedFd>,
    pub(super) terminal: Option<Console>,
    /// Outputs to copy, and those that are copied.
    pub(super) pipes: Vec<OutputPipe>,
    copying: JoinSet<()>,
    /// Log files to fill, and those that are filled.
    pub(super) log_pipes: Vec<LogPipe>,
    logs: JoinSet<()>,
    pub(super) logger: Option<Logger>,
    /// Asked for before there was a terminal.
    size: Option<Size>,
}

#[derive(Debug)]
pub(super) enum Input {
    /// The fifo to read from, and the write end of the container's input; `None` = its terminal.
    Opened(OwnedFd, Option<OwnedFd>),
    /// Being copied; dropping this ends it after what the fifo holds now.
    Copied { _until_closed: oneshot::Sender<()> },
}

#[derive(Debug)]
pub(super) enum Console {
    /// Where its output will go.
    Opened(OwnedFd),
    Served(Terminal),
}

impl StdioRelay {
    /// Starts copying; called within the runtime once the process has its descriptors. `master` is that of its
    /// terminal.
    pub fn serve(&mut self, master: Option<OwnedFd>) {
        let served = self.serve_terminal(master).and_then(|()| self.serve_outputs());
        if let Err(error) = served.and_then(|()| self.serve_input()) {
            tracing::error!(%error, "streams are not copied");
        }
    }

    fn serve_terminal(&mut self, master: Option<OwnedFd>) -> io::Result<()> {
        if let (Some(Console::Opened(output)), Some(master)) = (self.terminal.take(), master) {
            let terminal = Terminal::serve(master, output, &mut self.copying)?;
            if let Some(size) = self.size {
                terminal.resize(size)?;
            }
            self.terminal = Some(Console::Served(terminal));
        }
        Ok(())
    }

    fn serve_outputs(&mut self) -> io::Result<()> {
        self.log_pipes.drain(..).try_for_each(|pipe| pipe.serve(&mut self.logs))?;
        self.pipes.drain(..).try_for_each(|pipe| pipe.serve(&mut self.copying))
    }

    fn serve_input(&mut self) -> io::Result<()> {
        let Some(Input::Opened(fifo, pipe)) = self.input.take() else { return Ok(()) };
        let fifo = Receiver::from_owned_fd(fifo)?;
        let (until_closed, closed) = oneshot::channel();
        match (pipe, &self.terminal) {
            (Some(pipe), _) => {
                tokio::spawn(copy_input(fifo, Sender::from_owned_fd(pipe)?, closed));
            }
            (None, Some(Console::Served(terminal))) => {
                tokio::spawn(copy_input(fifo, terminal.master(), closed));
            }
            (None, _) => return Ok(()),
        }
        self.input = Some(Input::Copied { _until_closed: until_closed });
        Ok(())
    }

    /// Sets the terminal's size, now or when there is one. Without a terminal it means nothing, as with runc.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resize(&mut self, size: Size) -> io::Result<()> {
        self.size = Some(size);
        match &self.terminal {
            Some(Console::Served(terminal)) => terminal.resize(size),
            Some(Console::Opened(_)) | None => Ok(()),
        }
    }

    /// The size that was asked for last.
    #[must_use]
    pub const fn size(&self) -> Option<Size> {
        self.size
    }

    /// Ends the input after what has been written to it.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The filling of its log files, to wait for once all its processes have ended.
    pub fn take_logs(&mut self) -> JoinSet<()> {
        std::mem::take(&mut self.logs)
    }

    /// Waits until all output is copied, logged and read, then closes everything and ends the logging program.
    pub async fn finish(mut self) {
        drain(std::mem::take(&mut self.copying)).await;
        drain(self.take_logs()).await;
        until_read(&self.outputs).await;
        if let Some(logger) = self.close() {
            logger.end().await;
        }
    }

    /// Closes everything. Returns the logging program, to wait for.
    pub fn close(&mut self) -> Option<Logger> {
        self.close_input();
        self.terminal = None;
        self.pipes.clear();
        self.copying = JoinSet::new();
        self.log_pipes.clear();
        self.logs = JoinSet::new();
        self.outputs.clear();
        self.logger.take()
    }
}
