//! Calls functions from a process of the host that is no container: `cwasi invoke`, `cwasi gateway`, and a shim that
//! serves `cwasi.http`. Runs in these processes, on a tokio runtime.
//!
//! It is a caller like any other: it has an identity, `cwasi.allow` decides about its calls, an instance on this host
//! comes before one elsewhere, and a call that certainly did not run is repeated. It lives in `shim` because it is a
//! shim without containers: it makes its own connections to receivers, and has its own Redis client.
//!
//! Invariants: a call ends once, by its deadline at the latest. A dropped call leaves nothing behind: a late answer is
//! discarded.
//!
//! - [`HostCaller`]: calls. `callee`: the connections to one function; `connection`: one of them, with many calls;
//!   `counts`: its metrics; `tracer`: its traces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cwasi_abi::{METADATA_MAX, PAYLOAD_MAX};
use tokio::time::{Instant, timeout_at};

pub use crate::broker::CallerKind;
use crate::broker::{BrokerPeer, Resolver};
use crate::host_group::HostGroup;
use crate::metrics::Metrics;
use crate::metrics::snapshot::FunctionKey;
use crate::network::Network;
use cwasi_config::{NodeConfig, function_name};
use cwasi_coordinator::registry::{Record, Registry, RegistryError};
use cwasi_coordinator::selection::{callee_of, may_call, scope_of};
use cwasi_dispatcher::attempts::Attempts;
use cwasi_modes::causes::{Invalid, TooLarge, Unavailable};
use cwasi_modes::{CallError, ModeKind, Payload};
use cwasi_networked::link::LinkError;
use cwasi_sys::random::bytes16;
use cwasi_wire::control::ModeHint;
use cwasi_wire::envelope::{Metadata, Path, Request};
use cwasi_wire::ids::{CallId, Identity};
use cwasi_wire::metadata::{self, EARLIER_MAX};
use cwasi_wire::remaining;
use cwasi_wire::trace_headers::TraceHeaders;

mod callee;
mod connection;
mod counts;
mod tracer;

use callee::Callees;
use counts::{CallCounts, CallRoute, OpenCall};
use tracer::CallTrace;
pub use tracer::Tracer;

/// Name of a caller of the host, unless it has another.
pub const CALLER_NAME: &str = "gateway";
/// Longest wait of a call without a deadline of its own.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Who a caller of the host is.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    /// What it is: [`CallerKind::Gateway`] calls functions with `cwasi.http=gateway` only.
    pub kind: CallerKind,
    /// Its name, as `cwasi.allow` knows it.
    pub name: String,
    pub namespace: String,
    /// Kubernetes namespace, empty outside Kubernetes.
    pub pod_namespace: String,
}

impl CallerIdentity {
    /// [`CALLER_NAME`] in a containerd namespace, for an operator's own calls.
    #[must_use]
    pub fn in_namespace(namespace: &str) -> Self {
        Self {
            kind: CallerKind::Host,
            name: CALLER_NAME.to_owned(),
            namespace: namespace.to_owned(),
            pod_namespace: String::new(),
        }
    }
}

#[derive(Debug)]
pub struct HostCall<'a> {
    /// Its id, which the function reads as its invocation's.
    pub id: CallId,
    /// A function in the caller's namespace, or `namespace/function`.
    pub target: &'a str,
    /// The payload. More than [`cwasi_abi::INLINE_MAX`] bytes should be a segment: bytes are copied into one.
    pub payload: Payload,
    /// End of the wait.
    pub deadline: Instant,
    /// W3C trace context that a client sent; empty or invalid = none. The node's configuration says what it decides.
    pub trace: TraceHeaders<'a>,
    /// Records a trace of this call, whatever the configuration says.
    pub recorded: bool,
    /// What the function reads by `context_get`: keys that begin with `http.` or `openwhisk.`, see
    /// [`cwasi_abi::context_key`].
    pub metadata: Vec<Metadata>,
}

impl<'a> HostCall<'a> {
    /// A call that waits [`CALL_TIMEOUT`].
    #[must_use]
    pub fn new(target: &'a str, payload: Payload) -> Self {
        Self {
            id: CallId(bytes16()),
            target,
            payload,
            deadline: Instant::now() + CALL_TIMEOUT,
            trace: TraceHeaders::default(),
            recorded: false,
            metadata: Vec::new(),
        }
    }
}

/// What a callee takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalleeLimits {
    /// Largest payload in bytes.
    pub max_payload: u64,
    /// Most bytes of metadata; 0 = the callee is of the version before.
    max_head: u32,
}

impl CalleeLimits {
    /// Most bytes of metadata.
    #[must_use]
    pub const fn max_head(self) -> usize {
        match self.max_head {
            0 => EARLIER_MAX,
            most => most as usize,
        }
    }

    /// The metadata of a call as the callee reads it.
    ///
    /// # Errors
    /// When it is longer than the callee takes: another instance may take more.
    fn readable(self, call: &HostCall<'_>) -> Result<Vec<Metadata>, CallError> {
        let metadata = match self.max_head {
            0 => metadata::for_earlier(&call.metadata),
            _ => call.metadata.clone(),
        };
        let (length, most) = (metadata::length(&metadata), self.max_head());
        if length > most {
            let target = call.target.to_owned();
            return Err(TooLarge::Head { target, length, limit: most }.into());
        }
        Ok(metadata)
    }
}

/// What a callee answered.
#[derive(Debug)]
pub struct HostAnswer {
    pub payload: Payload,
    /// What the function set by `context_set`.
    pub metadata: Vec<Metadata>,
    /// The mode that moved it.
    pub mode: ModeKind,
    /// How it went to another host.
    pub path: Path,
    pub reason: Arc<str>,
    /// Id of the trace, if it is recorded.
    pub trace: Option<String>,
}

/// A function that a caller can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachableFunction {
    pub name: String,
    /// Its namespace: the pod's under Kubernetes, containerd's otherwise.
    pub namespace: String,
    /// Its instances on this node.
    pub instances: usize,
}

/// Calls functions; clones share connections.
#[derive(Clone, Debug)]
pub struct HostCaller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    resolver: Resolver,
    peer: Arc<BrokerPeer>,
    callees: Callees,
    tracer: Arc<Tracer>,
    /// None where the state directory cannot be written.
    counts: Option<Arc<CallCounts>>,
}

impl HostCaller {
    /// A caller on the node of this configuration, on the current runtime. Connects to Redis if the node has one. Its
    /// calls are counted in a group of its own.
    ///
    /// # Errors
    /// When the configuration of Redis is invalid. A Redis that is away is no error.
    pub fn start(config: &NodeConfig, identity: &CallerIdentity) -> Result<Self, LinkError> {
        let registry = Registry::new(&config.state_dir);
        let network = Network::start(config, &registry)?;
        let tracer = Tracer::of_process(config);
        let peer = peer(identity);
        let counts = match HostGroup::start(&config.state_dir) {
            Ok(group) => Some(CallCounts::of_process(group, peer.function_key())),
            Err(error) => {
                tracing::warn!(%error, "the calls of this process are not counted");
                None
            }
        };
        Ok(Self::over(Resolver::new(registry, network), peer, tracer, counts))
    }

    fn over(
        resolver: Resolver,
        peer: BrokerPeer,
        tracer: Tracer,
        counts: Option<Arc<CallCounts>>,
    ) -> Self {
        let (peer, tracer, callees) = (Arc::new(peer), Arc::new(tracer), Callees::default());
        Self { inner: Arc::new(Inner { resolver, peer, callees, tracer, counts }) }
    }

    /// The caller behind the HTTP port of an instance: [`CALLER_NAME`] in its scope, which calls that instance alone.
    /// Its calls are counted in `metrics`, which are the shim's.
    #[must_use]
    pub fn of_instance(
        resolver: Resolver,
        record: &Record,
        tracer: Tracer,
        metrics: Metrics,
    ) -> Self {
        let Identity { namespace, pod_namespace, .. } = record.identity.clone();
        let (kind, name) = (CallerKind::Port, CALLER_NAME.to_owned());
        let identity = CallerIdentity { kind, name, namespace, pod_namespace };
        let mut peer = peer(&identity);
        peer.instance.clone_from(&record.instance);
        peer.mode = ModeHint::Local;
        let workflow = record.workflow.clone();
        let counts = CallCounts::of_shim(metrics, FunctionKey { workflow, ..peer.function_key() });
        Self::over(resolver, peer, tracer, Some(counts))
    }

    /// Writes and exports the recorded traces, and writes the counts; at the end of a process. Later calls are not
    /// counted.
    pub async fn flush(&self) {
        if let Some(counts) = self.inner.counts.clone() {
            // Waits for the node's lock.
            let ended = tokio::task::spawn_blocking(move || counts.end()).await;
            if let Err(error) = ended {
                tracing::error!(%error, "writing the counts failed");
            }
        }
        self.inner.tracer.flush().await;
    }

    /// The same caller with connections of its own, for another runtime: a connection's answers are read by a task of
    /// the runtime that made it, and a call that waits for them on another thread costs a wake-up.
    #[must_use]
    pub fn sibling(&self) -> Self {
        let Inner { resolver, peer, tracer, counts, .. } = &*self.inner;
        let (resolver, peer, tracer) = (resolver.clone(), Arc::clone(peer), Arc::clone(tracer));
        let (callees, counts) = (Callees::default(), counts.clone());
        Self { inner: Arc::new(Inner { resolver, peer, callees, tracer, counts }) }
    }

    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.peer.identity
    }

    /// What `target` takes. Connects to it, if there is no connection.
    ///
    /// # Errors
    /// When there is no route.
    pub async fn limits(&self, target: &str, deadline: Instant) -> Result<CalleeLimits, CallError> {
        let connecting = async {
            let callee = self.inner.callees.of(target)?;
            Ok(callee.connection(&self.inner, target, &[]).await?.limits)
        };
        timeout_at(deadline, connecting).await.unwrap_or_else(|_elapsed| Err(timeout(target)))
    }

    /// Calls a function and waits for its end, until the call's deadline. Drop the future to give the call up.
    ///
    /// # Errors
    /// One [`CallError`].
    pub async fn call(&self, call: HostCall<'_>) -> Result<HostAnswer, CallError> {
        self.call_traced(call).await.1
    }

    /// [`Self::call`], and whether its trace is recorded, however it ends.
    pub async fn call_traced(&self, call: HostCall<'_>) -> (bool, Result<HostAnswer, CallError>) {
        let Inner { peer, tracer, counts, .. } = &*self.inner;
        let trace = tracer.begin(call.trace, call.recorded);
        let mut open = OpenCall::begin(counts.as_ref(), call.target, call.payload.len());
        let ended = timeout_at(call.deadline, self.attempt(&call, &trace, &mut open.route))
            .await
            .unwrap_or_else(|_elapsed| Err(timeout(call.target)));
        open.end(ended.as_ref().map(|answer| answer.payload.len()));
        let end = tracer::ended(call.target, call.payload.len(), open.route.as_ref(), &ended);
        tracer.end(peer.span_source(), &trace, end);
        let id = trace.id();
        (id.is_some(), ended.map(|answer| HostAnswer { trace: id, ..answer }))
    }

    /// Stores a one-way message for `target`, which will be handled at least once.
    ///
    /// # Errors
    /// One [`CallError`]; [`CallError::NotAvailable`] on a node without Redis.
    pub async fn emit(&self, call: HostCall<'_>) -> Result<(), CallError> {
        let Some(network) = self.inner.resolver.network() else {
            return Err(Unavailable::NoRedis.into());
        };
        check(call.target)?;
        let peer = &self.inner.peer;
        let callee = callee_of(&peer.identity, call.target);
        let tracer = &self.inner.tracer;
        let trace = tracer.begin(call.trace, call.recorded);
        let HostCall { id, target, payload, deadline, metadata, .. } = call;
        let (described, length) = ((trace.headers(), metadata), payload.len());
        let mut open = OpenCall::begin_emit(self.inner.counts.as_ref(), target, length);
        let stored =
            network.emit(&peer.calling(callee), id, target, described, payload, deadline).await;
        open.end(stored.as_ref().map(|()| 0));
        tracer.end(peer.span_source(), &trace, tracer::stored(target, length, &stored));
        stored
    }

    /// The functions of a namespace on this node that the caller can call, by name.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn functions(&self, namespace: &str) -> Result<Vec<ReachableFunction>, RegistryError> {
        let Inner { resolver, peer, .. } = &*self.inner;
        let mut functions: Vec<ReachableFunction> = Vec::new();
        let scope = callee_of(&peer.identity, &format!("{namespace}/"));
        let mut records = resolver.registry().scope(&scope)?;
        records.retain(|record| self.can_call(record));
        records.sort_by(|a, b| a.identity.function.cmp(&b.identity.function));
        for record in records {
            let identity = record.identity;
            match functions.last_mut() {
                Some(last) if last.name == identity.function => last.instances += 1,
                _ => functions.push(ReachableFunction {
                    namespace: scope_of(&identity).to_owned(),
                    name: identity.function,
                    instances: 1,
                }),
            }
        }
        Ok(functions)
    }

    /// The instances of a function on this node that the caller can call.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn instances(&self, target: &str) -> Result<Vec<Record>, RegistryError> {
        let Inner { resolver, peer, .. } = &*self.inner;
        let mut records = resolver.registry().instances(&callee_of(&peer.identity, target))?;
        records.retain(|record| self.can_call(record));
        Ok(records)
    }

    fn can_call(&self, record: &Record) -> bool {
        let peer = &self.inner.peer;
        peer.reaches(&record.instance, record.http)
            && may_call(&peer.identity, &record.identity, &record.allow)
    }

    async fn attempt(
        &self,
        call: &HostCall<'_>,
        trace: &CallTrace,
        route: &mut Option<CallRoute>,
    ) -> Result<HostAnswer, CallError> {
        check(call.target)?;
        let id = call.id;
        let TraceHeaders { traceparent, tracestate } = trace.headers();
        let mut attempts = Attempts::default();
        loop {
            let callee = self.inner.callees.of(call.target)?;
            let connection = callee.connection(&self.inner, call.target, attempts.avoid()).await?;
            let route = route.insert(connection.route());
            let left = call.deadline.saturating_duration_since(Instant::now());
            let request = Request {
                call_id: id.0.to_vec(),
                target: call.target.to_owned(),
                remaining_us: remaining::encode(Some(left)),
                traceparent: traceparent.to_owned(),
                tracestate: tracestate.to_owned(),
                sent_mono_ns: trace.sent_mono_ns(),
                metadata: connection.limits.readable(call)?,
                max_head: METADATA_MAX as u32,
                attempt: attempts.number(),
                ..Request::default()
            };
            match connection.call(id, &request, &call.payload, route).await {
                Err(error) if attempts.repeat_after(&error) => {
                    callee.retire(&connection);
                    attempts.avoid_also(Some(connection.instance.clone()));
                }
                ended => return ended,
            }
        }
    }
}

/// A caller of the host as shims know callers.
fn peer(identity: &CallerIdentity) -> BrokerPeer {
    let CallerIdentity { kind, name, namespace, pod_namespace } = identity.clone();
    BrokerPeer {
        kind,
        identity: Identity { namespace, pod_namespace, function: name },
        group: String::new(),
        workflow: String::new(),
        trust: String::new(),
        instance: hex::encode(bytes16()),
        mode: ModeHint::Auto,
        max_payload: PAYLOAD_MAX,
        not_embedded: BTreeMap::new(),
    }
}

/// Checks the name of a target.
fn check(target: &str) -> Result<(), CallError> {
    let name = target.rsplit_once('/').map_or(target, |(_, name)| name);
    let valid = function_name(name).is_ok() && target.len() <= cwasi_abi::TARGET_MAX;
    if valid { Ok(()) } else { Err(Invalid::Name { target: target.to_owned() }.into()) }
}

fn timeout(target: &str) -> CallError {
    CallError::Timeout { target: target.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callee_of_the_version_before_gets_the_metadata_that_it_reads() {
        let call = |length: usize| HostCall {
            metadata: vec![
                Metadata::of("http.header.a", b"\xe9"),
                Metadata::of("http.header.a", "b".repeat(length)),
            ],
            ..HostCall::new("f", Payload::Inline(Vec::new()))
        };
        let limits = |max_head| CalleeLimits { max_payload: 1, max_head };
        let (ours, earlier) = (limits(1 << 16), limits(0));
        assert_eq!(ours.readable(&call(1)).unwrap(), call(1).metadata);
        let joined = [Metadata::of("http.header.a", "\u{fffd}, b")];
        assert_eq!(earlier.readable(&call(1)).unwrap(), joined);
        assert!(ours.readable(&call(60_000)).is_ok());
        for (limits, length, most) in [(earlier, 8000, "7168"), (limits(9000), 9000, "9000")] {
            let error = limits.readable(&call(length)).unwrap_err().to_string();
            assert!(error.contains(&format!("takes {most}")), "{error}");
        }
    }
}
