//! One call over the network, from its request to exactly one end: one [try](super::tries) after the other, until one
//! may have run it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Network;
use super::bridge::Caller;
use super::order::Order;
use super::routes::Listed;
use super::sending::Sending;
use super::tries::{Again, End, Try};
use crate::dispatcher::selection::may_call;
use crate::modes::networked::{Backoff, NetworkError, Session};
use crate::modes::{CallError, Payload};
use crate::wire::network::Location;

/// Most tries of one call, pauses in between included.
const TRIES_MAX: usize = 16;
/// How long a call waits for Redis to come back, or to have memory again, before it ends as unreachable.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// First and longest pause between two tries while Redis refuses what they need.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What came of one try, or of not even one.
enum Step {
    Ended(Result<Payload, CallError>),
    /// Another instance may serve.
    Next(CallError),
    /// The same may succeed a little later.
    Later(CallError),
    /// There is no other instance.
    NoInstance,
}

/// A call's way from instance to instance.
struct Search {
    /// Instances that did not accept the call.
    tried: Vec<String>,
    backoff: Backoff,
    /// Until when the call waits for Redis; known from when it first had to.
    patience: Option<Instant>,
}

impl Search {
    /// Until when to wait, from now on.
    fn wait_until(&mut self, order: &Order) -> Instant {
        *self.patience.get_or_insert_with(|| {
            // Its worker tries again, and has waited before.
            let patience = if order.attempt > 1 { Duration::ZERO } else { PATIENCE };
            order.deadline.min(Instant::now() + patience)
        })
    }

    /// Pauses before the same is done again; false when the call has waited long enough.
    async fn pause(&mut self, order: &Order) -> bool {
        let again = Instant::now() + self.backoff.pause();
        if again >= self.wait_until(order) {
            return false;
        }
        sleep_until(again).await;
        true
    }
}

impl Network {
    /// Runs one call to its end.
    ///
    /// # Errors
    /// Exactly one [`CallError`]; [`CallError::Unreachable`] only when no instance has run or will run it.
    pub async fn call(&self, caller: &Caller, order: &Order) -> Result<Payload, CallError> {
        let mut search = Search {
            tried: Vec::new(),
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            patience: None,
        };
        let mut last = None;
        for _ in 0..TRIES_MAX {
            if Instant::now() >= order.deadline {
                return Err(order.timeout());
            }
            match self.step(caller, order, &mut search).await {
                Step::Ended(ended) => return ended,
                Step::Next(error) => last = Some(error),
                Step::Later(error) => {
                    last = Some(error);
                    if !search.pause(order).await {
                        break;
                    }
                }
                Step::NoInstance => break,
            }
        }
        self.inner.routes.forget(&order.callee);
        Err(last.unwrap_or_else(|| order.unreachable("no instance is announced in Redis")))
    }

    /// Tries one instance that was not tried yet.
    async fn step(&self, caller: &Caller, order: &Order, search: &mut Search) -> Step {
        let until = search.patience.unwrap_or_else(|| Instant::now() + PATIENCE);
        let session = match self.inner.link.session(order.deadline.min(until)).await {
            Ok(session) => session,
            Err(error) => return Step::Ended(Err(order.unreachable(error))),
        };
        let location = match self.next_location(&session, caller, order, &search.tried).await {
            Ok(Some(location)) => location,
            Ok(None) => return Step::NoInstance,
            Err(error) => return Step::Later(order.unreachable(error)),
        };
        let length = order.payload.len();
        if length > location.max_payload {
            let what = format!("payload for {}", order.target);
            return Step::Ended(Err(CallError::too_large(&what, length, location.max_payload)));
        }
        let sending = Sending::begin(&self.inner, &session, order);
        let sending = match timeout_at(order.deadline, sending).await {
            Ok(Ok(sending)) => sending,
            Ok(Err(error)) => return Step::Later(order.unreachable(error)),
            Err(_elapsed) => return Step::Ended(Err(order.timeout())),
        };
        match Try::new(&self.inner, &session, order, caller, &location).run(sending).await {
            End::Answered(result) => Step::Ended(result),
            End::NotAccepted(again, error) => {
                let instance = location.instance;
                tracing::debug!(call = %order.id, instance, %error, ?again, "not accepted");
                match again {
                    Again::Elsewhere => search.tried.push(instance),
                    Again::WhenAnnounced => {}
                    Again::AfterPause => return Step::Later(error),
                }
                Step::Next(error)
            }
        }
    }

    /// The next instance to try: in turn over all calls of this daemon. Waits when there is none that may only have to
    /// be announced again.
    async fn next_location(
        &self,
        session: &Session,
        caller: &Caller,
        order: &Order,
        tried: &[String],
    ) -> Result<Option<Location>, NetworkError> {
        let routes = &self.inner.routes;
        let listed = routes.wait_for(session, &caller.callee, order.deadline).await?;
        let Listed::At(mut locations) = listed else { return Ok(None) };
        locations.retain(|location| {
            !tried.contains(&location.instance)
                && may_call(&caller.identity, &caller.callee, &location.allow)
        });
        if locations.is_empty() {
            return Ok(None);
        }
        let turn = routes.turn(&caller.callee) % locations.len();
        Ok(Some(locations.swap_remove(turn)))
    }
}
