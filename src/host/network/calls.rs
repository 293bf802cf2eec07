//! Runs one call over the network: [tries](super::tries) one after another, until one of them may have run. Runs in
//! the shim daemon.
//!
//! Invariant: each call ends exactly once.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Network;
use super::bridge::BridgeCaller;
use super::direct::DirectEnd;
use super::outgoing::{CallResponse, OutgoingCall};
use super::routes::FunctionLocations;
use super::sending::TryPayload;
use super::tries::{Retry, Try, TryOutcome};
use cwasi_coordinator::selection::may_call;
use cwasi_modes::CallError;
use cwasi_modes::causes::{TooLarge, Unreached};
use cwasi_networked::{Backoff, NetworkError, RedisSession, demand};
use cwasi_wire::envelope::Path;
use cwasi_wire::metadata;
use cwasi_wire::network::Location;

/// Most tries of one call, pauses included.
const TRIES_MAX: usize = 16;
/// Longest wait for Redis to return, or to have memory again, before a call ends as unreachable.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// First pause between two tries while Redis refuses commands.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How often a held call looks for an instance.
const HELD_CHECK: Duration = Duration::from_millis(10);

/// Result of one try.
enum Step {
    Ended(Result<CallResponse, CallError>),
    Next(CallError),
    /// Try the same instance later.
    Later(CallError),
    /// There is no other instance.
    NoInstance,
}

/// The next instance of a call.
enum Candidate {
    At(Location),
    /// There is none now, and one is started for the call, as this Redis says.
    OnDemand(Box<RedisSession>),
    None,
}

/// A call's search for an instance.
struct InstanceSearch {
    /// Instances that did not accept the call.
    tried: Vec<String>,
    backoff: Backoff,
    /// One of them could not be reached; the others refused it.
    unreached: bool,
    /// End of the wait for Redis; set at the first wait.
    patience: Option<Instant>,
    /// That of the last try.
    path: Path,
}

impl InstanceSearch {
    /// End of the wait for Redis, set on first use.
    fn wait_until(&mut self, call: &OutgoingCall) -> Instant {
        *self.patience.get_or_insert_with(|| {
            // Its worker retries the call, and has waited before.
            let patience = if call.attempt > 1 { Duration::ZERO } else { PATIENCE };
            call.deadline.min(Instant::now() + patience)
        })
    }

    /// Pauses before a retry; false when the wait for Redis is over.
    async fn pause(&mut self, call: &OutgoingCall) -> bool {
        let again = Instant::now() + self.backoff.pause();
        if again >= self.wait_until(call) {
            return false;
        }
        sleep_until(again).await;
        true
    }
}

impl Network {
    /// Runs one call to its end: one [`CallError`], or its response; [`CallError::Unreachable`] only if no instance has
    /// run or will run the call. Returns the path of the last try, too.
    pub async fn call(
        &self,
        caller: &BridgeCaller,
        call: &OutgoingCall,
    ) -> (Result<CallResponse, CallError>, Path) {
        let mut search = InstanceSearch {
            tried: Vec::new(),
            unreached: false,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            patience: None,
            path: Path::PATH_NONE,
        };
        (self.search(caller, call, &mut search).await, search.path)
    }

    /// Tries instances until one of them may have run the call.
    async fn search(
        &self,
        caller: &BridgeCaller,
        call: &OutgoingCall,
        search: &mut InstanceSearch,
    ) -> Result<CallResponse, CallError> {
        let mut last = None;
        for _ in 0..TRIES_MAX {
            if Instant::now() >= call.deadline {
                return Err(call.timeout());
            }
            match self.step(caller, call, search).await {
                Step::Ended(ended) => return ended,
                Step::Next(error) => last = Some(error),
                Step::Later(error) => {
                    last = Some(error);
                    if !search.pause(call).await {
                        break;
                    }
                }
                Step::NoInstance => break,
            }
        }
        self.inner.routes.forget(&call.callee);
        Err(last.unwrap_or_else(|| call.unreachable(Unreached::NotAnnounced)))
    }

    /// Tries one new instance.
    async fn step(
        &self,
        caller: &BridgeCaller,
        call: &OutgoingCall,
        search: &mut InstanceSearch,
    ) -> Step {
        let session = match self.session_for(call, search).await {
            Ok(session) => session,
            Err(error) => return Step::Ended(Err(call.unsent(error))),
        };
        let location = match self.next_location(session.as_ref(), caller, call, search).await {
            Ok(Candidate::At(location)) => location,
            Ok(Candidate::OnDemand(session)) => {
                return self.hold(&session, caller, call, &search.tried).await;
            }
            Ok(Candidate::None) => return Step::NoInstance,
            Err(error) => return Step::Later(call.unsent(error)),
        };
        let length = call.payload.len();
        if length > location.max_payload {
            let what = format!("payload for {}", call.target);
            return Step::Ended(Err(CallError::too_large(&what, length, location.max_payload)));
        }
        let readable = match readable(call, &location) {
            Ok(readable) => readable,
            Err(error) => return Step::Ended(Err(error)),
        };
        let call = readable.as_ref().unwrap_or(call);
        let path = &mut search.path;
        let outcome = match self.try_at(session.as_ref(), caller, call, &location, path).await {
            Ok(outcome) => outcome,
            Err(step) => return step,
        };
        match outcome {
            TryOutcome::Answered(result) => Step::Ended(result),
            TryOutcome::NotAccepted(again, error) => {
                let instance = &location.instance;
                tracing::debug!(call = %call.id, instance, %error, ?again, "not accepted");
                match again {
                    Retry::Elsewhere => {
                        if matches!(error, CallError::Unreachable { .. }) {
                            search.unreached = true;
                            self.inner.routes.drop_kept(&location);
                        }
                        search.tried.push(location.instance);
                    }
                    Retry::WhenAnnounced => {}
                    Retry::AfterPause => return Step::Later(error),
                }
                Step::Next(error)
            }
        }
    }

    /// The session with Redis; `None` while it is away, if the callee's instances are reached without it, and on a node
    /// without Redis.
    async fn session_for(
        &self,
        call: &OutgoingCall,
        search: &InstanceSearch,
    ) -> Result<Option<RedisSession>, NetworkError> {
        if let Ok(session) = self.inner.link.session_now() {
            return Ok(Some(session));
        }
        if self.inner.peers().is_some() || self.inner.known_directly(&call.callee).is_some() {
            return Ok(None);
        }
        let until = search.patience.unwrap_or_else(|| Instant::now() + PATIENCE);
        self.inner.link.session(call.deadline.min(until)).await.map(Some)
    }

    /// One try at this instance: directly if both nodes offer it, otherwise over Redis.
    async fn try_at(
        &self,
        session: Option<&RedisSession>,
        caller: &BridgeCaller,
        call: &OutgoingCall,
        location: &Location,
        path: &mut Path,
    ) -> Result<TryOutcome, Step> {
        let mut why = None;
        if let Some(direct) = self.inner.direct_to(location) {
            match self.try_direct(direct, caller, call, location).await {
                DirectEnd::Tried(outcome) => {
                    *path = Path::PATH_DIRECT;
                    return Ok(outcome);
                }
                DirectEnd::NoConnection(error) => why = Some(error),
            }
        }
        let is_always_direct = self.inner.is_always_direct();
        let Some(session) = session.filter(|_| !is_always_direct) else {
            let error = why.map_or_else(|| self.no_path(location), |why| why.to_string());
            return Ok(TryOutcome::NotAccepted(Retry::Elsewhere, call.unsent(error)));
        };
        *path = Path::PATH_REDIS;
        let sending = TryPayload::begin(&self.inner, session, call);
        let sending = match timeout_at(call.deadline, sending).await {
            Ok(Ok(sending)) => sending,
            Ok(Err(error)) => return Err(Step::Later(call.unsent(error))),
            Err(_elapsed) => return Err(Step::Ended(Err(call.timeout()))),
        };
        Ok(Try::new(&self.inner, session, call, caller, location).run(sending).await)
    }

    /// Why there is neither a direct connection nor Redis.
    fn no_path(&self, location: &Location) -> String {
        let why = self.why_not_direct(location);
        why.unwrap_or_else(|| "Redis is away".to_owned())
    }

    /// The next instance; all calls of this daemon take instances in turn. If there is none, waits for instances that
    /// may be announced again.
    async fn next_location(
        &self,
        session: Option<&RedisSession>,
        caller: &BridgeCaller,
        call: &OutgoingCall,
        search: &InstanceSearch,
    ) -> Result<Candidate, NetworkError> {
        let routes = &self.inner.routes;
        let known = || self.inner.known_directly(&caller.callee);
        let may_serve = |location: &Location| {
            !search.tried.contains(&location.instance)
                && (!caller.http || location.http)
                && may_call(&caller.identity, &caller.callee, &location.allow)
        };
        let directory = session.map(|it| self.inner.redis(it)).or_else(|| self.inner.peers());
        let listed = match &directory {
            Some(directory) => {
                let usable = |it: &Location| self.inner.is_reached_directly(it) && may_serve(it);
                match routes.listed(directory, &caller.callee, call.deadline, usable).await {
                    Err(error) => known().ok_or(error)?,
                    listed => listed?,
                }
            }
            None => known().unwrap_or(FunctionLocations::Never),
        };
        let on_demand = |session: &RedisSession| Candidate::OnDemand(Box::new(session.clone()));
        let mut locations = match listed {
            FunctionLocations::At(locations) => locations,
            FunctionLocations::OnDemand(_) => {
                return Ok(session.map_or(Candidate::None, on_demand));
            }
            FunctionLocations::Vanished(_) | FunctionLocations::Never => {
                return Ok(Candidate::None);
            }
        };
        locations.retain(may_serve);
        if locations.is_empty() {
            // The last instance ends, and its location is still believed: the next one is started for the call.
            let Some(session) = session.filter(|_| search.unreached) else {
                return Ok(Candidate::None);
            };
            let is_started = demand::look_up(session, &caller.callee).await?.is_some();
            return Ok(if is_started { on_demand(session) } else { Candidate::None });
        }
        let turn = routes.turn(&caller.callee) % locations.len();
        Ok(Candidate::At(locations.swap_remove(turn)))
    }

    /// Holds a call until an instance has started that has not been `tried`, at most until the call's deadline. The
    /// payload stays in the caller's segment. An instance on this host is reached by another route, which the worker
    /// asks for.
    async fn hold(
        &self,
        session: &RedisSession,
        caller: &BridgeCaller,
        call: &OutgoingCall,
        tried: &[String],
    ) -> Step {
        let _held = self.inner.held.begin(&call.callee);
        let directory = self.inner.redis(session);
        loop {
            if caller.has_moved(&self.inner.registry) {
                return Step::Ended(Err(call.unreachable(Unreached::Moved)));
            }
            match self.inner.routes.of(&directory, &call.callee).await {
                Ok(FunctionLocations::OnDemand(_)) => {}
                Ok(FunctionLocations::At(locations))
                    if locations.iter().all(|it| tried.contains(&it.instance)) => {}
                Ok(_) => return Step::Next(call.unreachable(Unreached::NotAnnounced)),
                Err(error) => return Step::Later(call.unsent(error)),
            }
            let next = Instant::now() + HELD_CHECK;
            if next >= call.deadline {
                return Step::Ended(Err(call.unreachable(Unreached::NotStarted)));
            }
            sleep_until(next).await;
        }
    }
}

/// The call as an instance of the version before reads its metadata; `None` when the instance reads it as it is.
///
/// # Errors
/// When the instance does not take as much metadata.
fn readable(call: &OutgoingCall, location: &Location) -> Result<Option<OutgoingCall>, CallError> {
    if call.metadata.is_empty() {
        return Ok(None);
    }
    let (earlier, most) = match location.max_head {
        0 => (Some(metadata::for_earlier(&call.metadata)), metadata::EARLIER_MAX),
        most => (None, most as usize),
    };
    let length = metadata::length(earlier.as_ref().unwrap_or(&call.metadata));
    if length > most {
        let target = call.target.clone();
        return Err(TooLarge::Head { target, length, limit: most }.into());
    }
    Ok(earlier.map(|metadata| OutgoingCall { metadata, ..call.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_modes::Payload;
    use cwasi_wire::envelope::Metadata;
    use cwasi_wire::ids::{CallId, Identity};

    #[test]
    fn an_instance_of_the_version_before_gets_the_metadata_that_it_reads() {
        let identity = || Identity {
            namespace: "default".to_owned(),
            pod_namespace: String::new(),
            function: "f".to_owned(),
        };
        let at = |max_head| Location {
            identity: identity(),
            node: "n".to_owned(),
            instance: "i".to_owned(),
            allow: Vec::new(),
            max_payload: 1,
            max_head,
            http: true,
            link: None,
        };
        let with = |metadata: Vec<Metadata>| OutgoingCall {
            id: CallId([1; 16]),
            callee: identity(),
            target: "f".to_owned(),
            deadline: Instant::now(),
            traceparent: String::new(),
            tracestate: String::new(),
            attempt: 1,
            run: Vec::new(),
            join: None,
            metadata,
            max_head: 1 << 16,
            payload: Payload::Inline(Vec::new()),
        };
        let call = with(vec![
            Metadata::of("http.header.a", b"\xe9".to_vec()),
            Metadata::of("http.header.a", "b"),
        ]);
        assert!(readable(&call, &at(1 << 16)).unwrap().is_none());
        let earlier = readable(&call, &at(0)).unwrap().unwrap();
        assert_eq!(earlier.metadata, [Metadata::of("http.header.a", "\u{fffd}, b")]);
        let long = with(vec![Metadata::of("http.header.a", vec![b'x'; metadata::EARLIER_MAX])]);
        assert!(readable(&long, &at(0)).is_err() && readable(&long, &at(1 << 16)).is_ok());
    }
}
