//! Ctrl-C and its relatives: they end what a verb does, and the verb then takes down what it started.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Receives the signals that ask a program to end. While it exists they do not end the process.
#[derive(Debug)]
pub struct Interrupt([Signal; 3]);

impl Interrupt {
    /// Begins to receive.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new() -> io::Result<Self> {
        let [one, two, three] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([one?, two?, three?]))
    }

    /// Waits for a signal; the exit code of a command that it ends.
    pub async fn received(&mut self) -> Exit {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => Exit::Interrupted,
            _ = terminate.recv() => Exit::Terminated,
            _ = hangup.recv() => Exit::HungUp,
        }
    }

    /// Does `work`, unless a signal comes first.
    ///
    /// # Errors
    /// Those of `work`, or the signal's exit code.
    pub async fn or<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            outcome = work => outcome,
            exit = self.received() => Err(Failure::text(exit, "interrupted")),
        }
    }
}
