//! The broker: what a sandbox asks its shim, over a socketpair that the sandbox inherited.
//!
//! Runs in the daemon. A sandbox has no host paths: for a new callee it asks here, the shim applies policy,
//! connects to the callee's receiver, says hello in the caller's true name and hands the connection over.
//!
//! Here are the answers; [`session`] is the conversation with one sandbox.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cwasi_abi::Errno;
use tokio::sync::watch;

use super::edges::Edges;
use super::network::{self, Listed, Network};
use crate::coordinator::registry::{Record, Registry, RegistryError};
use crate::dispatcher::selection::{
    Embedding, Facts, Member, Remote, Selection, callee_of, may_call, may_lend, select,
};
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::{self, SocketError};
use crate::wire::control::{ModeHint, ResolveReply, ResolveRequest};
use crate::wire::envelope::Hello;
use crate::wire::frame::{PayloadRef, encode_head};
use crate::wire::ids::Identity;
use crate::wire::network::Location;

mod session;

pub use session::Readiness;
use session::Session;

/// Longest name that is looked for, in bytes.
const TARGET_MAX: usize = 512;
/// Longest time a worker may take to take its answer, in nanoseconds.
const REPLY_MAX_NS: u64 = 1_000_000_000;

/// On whose behalf a sandbox speaks.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Its function.
    pub identity: Identity,
    /// Its pod or workflow on this host; empty when it has neither.
    pub group: String,
    /// Its workflow.
    pub workflow: String,
    /// Its trust group.
    pub trust: String,
    /// Its instance.
    pub instance: String,
    /// Which modes its calls may take.
    pub mode: ModeHint,
    /// Largest payload that it sends or takes, in bytes.
    pub max_payload: u64,
    /// Functions that were to be embedded in it and are not, with the reason.
    pub not_embedded: BTreeMap<String, String>,
}

impl Speaker {
    /// It as the caller of `callee` over the network.
    #[must_use]
    pub fn calling(&self, callee: Identity) -> network::Caller {
        network::Caller {
            identity: self.identity.clone(),
            workflow: self.workflow.clone(),
            instance: self.instance.clone(),
            hint: self.mode,
            max_payload: self.max_payload,
            callee,
            passed_over: Vec::new(),
        }
    }

    fn member(&self) -> Member<'_> {
        Member { identity: &self.identity, workflow: &self.workflow, trust: &self.trust }
    }
}

fn member(record: &Record) -> Member<'_> {
    Member { identity: &record.identity, workflow: &record.workflow, trust: &record.trust }
}

/// The group's broker; clones share it.
#[derive(Clone, Debug)]
pub struct Broker {
    registry: Registry,
    edges: Edges,
    network: Option<Network>,
    rotation: Arc<AtomicUsize>,
}

impl Broker {
    /// A broker over the host's registry and, when the node has one, the network.
    #[must_use]
    pub fn new(registry: Registry, edges: Edges, network: Option<Network>) -> Self {
        Self { registry, edges, network, rotation: Arc::default() }
    }

    /// The node's network, if it has one.
    #[must_use]
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// The host's registry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The group's edges.
    #[must_use]
    pub fn edges(&self) -> &Edges {
        &self.edges
    }

    /// Serves one sandbox until all its processes are gone.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn serve(
        &self,
        socket: OwnedFd,
        speaker: Speaker,
    ) -> std::io::Result<watch::Receiver<Readiness>> {
        Session::start(self.clone(), socket, speaker)
    }

    /// Answers a question; with a connection when there is a route.
    fn resolve(
        &self,
        speaker: &Speaker,
        request: &ResolveRequest,
    ) -> (ResolveReply, Option<OwnedFd>) {
        if request.target.is_empty() || request.target.len() > TARGET_MAX {
            let message = format!("a function's name has 1 to {TARGET_MAX} bytes");
            return unroutable(Errno::InvalidArgument, message);
        }
        let callee = callee_of(&speaker.identity, &request.target);
        let (local, beside) = match self.look_up(&callee) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(caller = %speaker.identity, %error, "registry unreadable");
                return unroutable(Errno::Internal, "the host's registry cannot be read".into());
            }
        };
        let mut avoid = request.avoid.clone();
        let (held, nearer) = (&request.held, request.nearer);
        let known = Known { local: &local, beside: &beside, held, nearer };
        let first = self.choose(speaker, &callee, known, &mut avoid);
        match first {
            // Nobody here took the connection: perhaps somebody elsewhere does.
            (ResolveReply::Unroutable { .. }, _) if avoid.len() > request.avoid.len() => {
                match self.choose(speaker, &callee, known, &mut avoid) {
                    (ResolveReply::Unroutable { .. }, _) => first,
                    other => other,
                }
            }
            first => first,
        }
    }

    /// Selects and connects once; instances that did not take the connection are added to `avoid`.
    fn choose(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        known: Known<'_>,
        avoid: &mut Vec<String>,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let Known { local, beside, held, nearer } = known;
        let remote = if nearer {
            Elsewhere::Locations(Vec::new())
        } else {
            self.remote(speaker, callee, local, avoid)
        };
        let tried = avoid.clone();
        let facts = Facts {
            caller: &speaker.identity,
            callee,
            group: &speaker.group,
            hint: speaker.mode,
            embedding: embedding(speaker, callee),
            local,
            remote: remote.as_fact(),
            avoid: &tried,
            held,
            nearer,
            beside,
            rotation: self.rotation.fetch_add(1, Ordering::Relaxed),
        };
        match select(&facts) {
            Selection::Unroutable { errno, message } => unroutable(errno, message),
            Selection::Embedded { .. } => {
                unroutable(Errno::Internal, format!("{callee} is embedded; its caller knows that"))
            }
            Selection::NoOther { instances } => (ResolveReply::NoOther { instances }, None),
            Selection::Local { candidates, instances, reason } => {
                connect_first(speaker, callee, &candidates, (reason, instances), avoid)
            }
            Selection::Networked { candidates, reason } => {
                let largest = candidates.iter().map(|location| location.max_payload).max();
                self.bridge(speaker, callee, local, largest.unwrap_or(0), reason)
            }
        }
    }

    fn bridge(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        local: &[Record],
        max_payload: u64,
        reason: String,
    ) -> (ResolveReply, Option<OwnedFd>) {
        let passed_over = local.iter().map(|record| record.instance.clone()).collect();
        let caller = network::Caller { passed_over, ..speaker.calling(callee.clone()) };
        let bridge = self.network.as_ref().map(|network| network.bridge(caller));
        match bridge {
            Some(Ok(connection)) => {
                (ResolveReply::Networked { reason, max_payload }, Some(connection))
            }
            Some(Err(error)) => unroutable(Errno::Internal, format!("no connection: {error}")),
            None => unroutable(Errno::Internal, "this node has no network".to_owned()),
        }
    }

    /// What Redis lists, asked only when nobody on this host can serve the caller. Blocks.
    fn remote(
        &self,
        speaker: &Speaker,
        callee: &Identity,
        local: &[Record],
        avoid: &[String],
    ) -> Elsewhere {
        let Some(network) = &self.network else { return Elsewhere::NotConfigured };
        let here = |record: &Record| {
            !avoid.contains(&record.instance) && may_call(&speaker.identity, callee, &record.allow)
        };
        let needed = match speaker.mode {
            ModeHint::Auto => !local.iter().any(here),
            ModeHint::Networked => true,
            ModeHint::Embedded | ModeHint::Local => false,
        };
        if !needed {
            return Elsewhere::Locations(Vec::new());
        }
        match tokio::runtime::Handle::current().block_on(network.locations(callee)) {
            Ok(Listed::At(locations)) => Elsewhere::Locations(locations),
            Ok(Listed::Vanished(since)) => Elsewhere::Vanished(since),
            Ok(Listed::Never) => Elsewhere::Locations(Vec::new()),
            Err(error) => Elsewhere::Away(error.to_string()),
        }
    }

    fn look_up(&self, callee: &Identity) -> Result<(Vec<Record>, Vec<String>), RegistryError> {
        let local = self.registry.instances(callee)?;
        let beside =
            if local.is_empty() { self.registry.functions_beside(callee)? } else { Vec::new() };
        Ok((local, beside))
    }
}

/// What this host knows about a callee, and the caller holds of it.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// Instances here.
    local: &'a [Record],
    /// Other functions in its scope here, when there are none.
    beside: &'a [String],
    /// Instances that the caller has connections to, and wants no others of.
    held: &'a [String],
    /// It wants one of its own group.
    nearer: bool,
}

/// What was found out about other hosts.
enum Elsewhere {
    NotConfigured,
    Away(String),
    Vanished(Duration),
    Locations(Vec<Location>),
}

impl Elsewhere {
    fn as_fact(&self) -> Remote<'_> {
        match self {
            Self::NotConfigured => Remote::NotConfigured,
            Self::Away(reason) => Remote::Away { reason },
            Self::Vanished(since) => Remote::Vanished { since: *since },
            Self::Locations(locations) => Remote::Known(locations),
        }
    }
}

fn unroutable(errno: Errno, message: String) -> (ResolveReply, Option<OwnedFd>) {
    (ResolveReply::Unroutable { errno: errno as i32, message }, None)
}

/// What the coordinator said about the callee in the caller's VM; one that is loaded is never asked for.
fn embedding<'a>(speaker: &'a Speaker, callee: &Identity) -> Embedding<'a> {
    let sibling = callee.same_scope(&speaker.identity);
    let refused = speaker.not_embedded.get(&callee.function).filter(|_| sibling);
    refused.map_or(Embedding::No, |reason| Embedding::Untrusted { reason })
}

/// A connection to the first candidate that takes one; the others join `avoid`.
fn connect_first(
    speaker: &Speaker,
    callee: &Identity,
    candidates: &[&Record],
    (reason, instances): (String, usize),
    avoid: &mut Vec<String>,
) -> (ResolveReply, Option<OwnedFd>) {
    let mut full = false;
    for record in candidates {
        let lends = may_lend(speaker.member(), member(record));
        match connect(speaker, &record.socket, lends) {
            Ok(connection) => {
                let instance = record.instance.clone();
                let max_payload = record.max_payload;
                let nearest = speaker.group.is_empty() || speaker.group == record.group;
                let reply = ResolveReply::Local {
                    instance,
                    reason,
                    max_payload,
                    instances,
                    nearest,
                    lends,
                };
                return (reply, Some(connection));
            }
            Err(SocketError::Deadline) => full = true,
            Err(error) => {
                let (instance, container) = (&record.instance, &record.container);
                tracing::debug!(%callee, instance, container, %error, "instance does not answer");
            }
        }
        if !avoid.contains(&record.instance) {
            avoid.push(record.instance.clone());
        }
    }
    let (errno, what) = if full {
        (Errno::Overloaded, "have no room for another caller")
    } else {
        (Errno::Unreachable, "do not answer")
    };
    unroutable(errno, format!("the {} instances of {callee} on this host {what}", candidates.len()))
}

/// Connects to a receiver and says hello in the caller's name.
fn connect(speaker: &Speaker, receiver: &Path, lends: bool) -> Result<OwnedFd, SocketError> {
    let connection = seqpacket::connect_to(receiver)?;
    let hello = Hello::of(&speaker.identity, &speaker.workflow, &speaker.instance).lending(lends);
    let head = encode_head(&hello, PayloadRef::Inline(&[])).map_err(|error| SocketError::Os {
        operation: "hello",
        source: std::io::Error::other(error),
    })?;
    seqpacket::send(connection.as_fd(), &[&head], &[], Some(monotonic_ns() + REPLY_MAX_NS))?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{self, CONTROL_MESSAGE_MAX, SandboxMessage};
    use crate::wire::frame::{FRAME_MAX, decode};

    /// A broker, and the sandbox's end of a conversation with it.
    pub(super) struct Bed {
        dir: tempfile::TempDir,
        broker: Broker,
        pub(super) sandbox: OwnedFd,
        pub(super) readiness: watch::Receiver<Readiness>,
    }

    fn identity(function: &str) -> Identity {
        Identity { namespace: "n".into(), pod_namespace: String::new(), function: function.into() }
    }

    pub(super) fn bed() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let edges = Edges::start(dir.path().join("edges.json"));
        let broker = Broker::new(Registry::new(dir.path()), edges, None);
        let (ours, sandbox) = seqpacket::pair().unwrap();
        let speaker = Speaker {
            identity: identity("a"),
            trust: String::new(),
            group: "own".into(),
            workflow: "w".into(),
            instance: "1".into(),
            mode: ModeHint::Auto,
            max_payload: 7,
            not_embedded: BTreeMap::new(),
        };
        let readiness = broker.serve(ours, speaker).unwrap();
        Bed { dir, broker, sandbox, readiness }
    }

    impl Bed {
        /// Registers an instance of `b`; whoever keeps the listener takes its connections.
        fn register(&self, instance: &str) -> OwnedFd {
            self.register_in(instance, "")
        }

        /// An instance of `b` in a group.
        fn register_in(&self, instance: &str, group: &str) -> OwnedFd {
            let socket = self.dir.path().join(instance);
            let record = Record {
                identity: identity("b"),
                instance: instance.into(),
                group: group.into(),
                workflow: String::new(),
                trust: String::new(),
                allow: Vec::new(),
                socket: socket.clone(),
                max_payload: 7,
                container: "c".into(),
            };
            self.broker.registry().add(&record).unwrap();
            seqpacket::listener(&socket).unwrap()
        }

        async fn resolve(&self, target: &str) -> (ResolveReply, Vec<OwnedFd>) {
            self.resolve_beside(target, &[]).await
        }

        async fn resolve_beside(
            &self,
            target: &str,
            held: &[&str],
        ) -> (ResolveReply, Vec<OwnedFd>) {
            let (ours, theirs) = seqpacket::pair().unwrap();
            let (avoid, held) = (Vec::new(), held.iter().map(|one| (*one).to_owned()).collect());
            let request = ResolveRequest { target: target.into(), avoid, held, nearer: false };
            let question = control::encode(&SandboxMessage::Resolve(request));
            seqpacket::send(self.sandbox.as_fd(), &[&question], &[theirs.as_fd()], None).unwrap();
            let receiving = tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
                let received = seqpacket::receive(ours.as_fd(), &mut buffer, None).unwrap();
                (control::decode(&buffer[..received.len]).unwrap(), received.descriptors)
            });
            receiving.await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_route_comes_connected_and_introduced_by_the_callers_true_name() {
        let bed = bed();
        // A killed instance's record is still there; the living one serves.
        drop(bed.register("dead"));
        let listener = bed.register("live");
        for _ in 0..2 {
            let (reply, descriptors) = bed.resolve("b").await;
            let expected = "live".to_owned();
            assert!(
                matches!(&reply, ResolveReply::Local { instance, max_payload: 7, .. } if *instance == expected),
                "{reply:?}"
            );
            assert_eq!(descriptors.len(), 1);
            let connection = seqpacket::accept_from(listener.as_fd()).unwrap().unwrap();
            let mut buffer = vec![0; FRAME_MAX];
            let received = seqpacket::receive(connection.as_fd(), &mut buffer, None).unwrap();
            let hello: Hello = decode(&buffer[..received.len]).unwrap().open().unwrap();
            assert_eq!((hello.identity(), hello.workflow.as_str()), (identity("a"), "w"));
        }
    }

    #[tokio::test]
    async fn a_caller_that_holds_instances_gets_others_as_long_as_there_are_some() {
        let bed = bed();
        let _listeners = [bed.register("1"), bed.register("2")];
        let (reply, _) = bed.resolve("b").await;
        let ResolveReply::Local { instance, instances: 2, .. } = reply else { panic!("{reply:?}") };
        let (reply, descriptors) = bed.resolve_beside("b", &[&instance]).await;
        let ResolveReply::Local { instance: other, instances: 2, .. } = reply else {
            panic!("{reply:?}")
        };
        assert!(other != instance && descriptors.len() == 1);
        let (reply, descriptors) = bed.resolve_beside("b", &["1", "2"]).await;
        assert_eq!(reply, ResolveReply::NoOther { instances: 2 });
        assert!(descriptors.is_empty());
    }

    #[tokio::test]
    async fn an_instance_of_the_own_group_comes_first_and_its_dead_one_does_not_end_the_call() {
        let bed = bed();
        let _others = [bed.register_in("1", "other"), bed.register_in("2", "other")];
        let own = bed.register_in("3", "own");
        for _ in 0..4 {
            let (reply, _) = bed.resolve("b").await;
            let ResolveReply::Local { instance, instances: 1, nearest: true, .. } = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(instance, "3");
        }
        let (reply, _) = bed.resolve_beside("b", &["3"]).await;
        assert_eq!(
            reply,
            ResolveReply::NoOther { instances: 1 },
            "calls are spread over the group"
        );
        drop(own);
        let (reply, _) = bed.resolve("b").await;
        assert!(matches!(reply, ResolveReply::Local { nearest: false, .. }), "{reply:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_routed_says_why() {
        let bed = bed();
        drop(bed.register("dead"));
        let long = "x".repeat(TARGET_MAX + 1);
        let table = [
            ("b", Errno::Unreachable),
            ("nobody", Errno::NoSuchFunction),
            ("", Errno::InvalidArgument),
            (long.as_str(), Errno::InvalidArgument),
        ];
        for (target, expected) in table {
            let (reply, descriptors) = bed.resolve(target).await;
            assert!(descriptors.is_empty());
            let ResolveReply::Unroutable { errno, message } = reply else { panic!("{reply:?}") };
            assert_eq!(errno, expected as i32, "{message}");
        }
    }
}
