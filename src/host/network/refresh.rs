//! Look-ups in the background: one at a time for each thing that is known. Who asks goes on with what is known before,
//! so a Redis that hangs delays nothing that works without it. Runs in the shim daemon.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The look-up of one thing, if there was one.
#[derive(Debug, Default)]
pub(super) struct Background(Option<LookUp>);

/// A look-up that runs, or has ended.
#[derive(Clone, Debug)]
pub(super) struct LookUp {
    began: Instant,
    /// Closed at its end.
    ended: watch::Receiver<()>,
}

impl Background {
    /// The look-up that runs. If there is none, begins this one, on the current runtime.
    pub(super) fn begin(&mut self, look_up: impl Future<Output = ()> + Send + 'static) -> LookUp {
        if let Some(running) = self.0.as_ref().filter(|before| before.ended.has_changed().is_ok()) {
            return running.clone();
        }
        let (sender, ended) = watch::channel(());
        tokio::spawn(async move {
            look_up.await;
            drop(sender);
        });
        self.0.insert(LookUp { began: Instant::now(), ended }).clone()
    }
}

impl LookUp {
    /// True if it has ended at last so long after it began, which this waits for.
    pub(super) async fn ends_within(mut self, patience: Duration) -> bool {
        // It sends nothing: its end is the change.
        timeout_at(self.began + patience, self.ended.changed()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn one_runs_at_a_time_and_others_wait_for_it_for_a_moment() {
        let mut background = Background::default();
        let (end, ends) = oneshot::channel::<()>();
        let first = background.begin(async move { drop(ends.await) });
        assert!(!first.ends_within(Duration::ZERO).await);
        let same = background.begin(async { panic!("one runs") });
        assert!(!same.clone().ends_within(Duration::from_millis(1)).await);
        end.send(()).unwrap();
        assert!(same.clone().ends_within(LONG).await && same.ends_within(Duration::ZERO).await);
        let (ran, runs) = oneshot::channel();
        let second = background.begin(async move { ran.send(()).unwrap() });
        assert!(second.ends_within(LONG).await && runs.await.is_ok());
    }

    #[tokio::test]
    async fn one_that_panics_has_ended() {
        let mut background = Background::default();
        assert!(background.begin(async { panic!("no memory") }).ends_within(LONG).await);
    }
}
