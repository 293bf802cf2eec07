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

    /// Waits for a signal.
    pub async fn received(&mut self) {
        let [one, two, three] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = two.recv() => {}
            _ = three.recv() => {}
        }
    }

    /// Does `work`, unless a signal comes first.
    ///
    /// # Errors
    /// Those of `work`, or [`Exit::Interrupted`].
    pub async fn or<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            outcome = work => outcome,
            () = self.received() => Err(Failure::text(Exit::Interrupted, "interrupted")),
        }
    }
}
