//! Selection over the whole table of facts, against the rules as a user reads them.

use proptest::prelude::*;

use super::*;

fn identity(function: &str) -> Identity {
    Identity { namespace: "n".into(), pod_namespace: String::new(), function: function.into() }
}

fn allow(allowed: bool) -> Vec<String> {
    vec![if allowed { "a" } else { "z" }.to_owned()]
}

/// Instances 0 to 2 are of the caller's own group.
const OWN: std::ops::Range<usize> = 0..3;

fn record(instance: usize, allowed: bool) -> Record {
    Record {
        identity: identity("b"),
        instance: instance.to_string(),
        group: if OWN.contains(&instance) { "own" } else { "other" }.into(),
        workflow: String::new(),
        trust: String::new(),
        allow: allow(allowed),
        socket: "/s".into(),
        max_payload: 1,
        max_head: 65_536,
        container: "c".into(),
        http: false,
        http_port: None,
        http_idle_ms: 0,
        timeout_ms: None,
        triggers: Vec::new(),
        workers: None,
        link: String::new(),
    }
}

fn location(instance: usize, allowed: bool) -> Location {
    Location {
        identity: identity("b"),
        node: "m".into(),
        instance: instance.to_string(),
        allow: allow(allowed),
        max_payload: 1,
        max_head: 65_536,
        http: false,
        link: None,
    }
}

#[derive(Clone, Debug)]
enum Net {
    Off,
    Away,
    Known(Vec<(usize, bool)>),
}

#[derive(Clone, Debug)]
struct Case {
    hint: ModeHint,
    embedding: EmbeddingState<'static>,
    local: Vec<(usize, bool)>,
    net: Net,
    avoid: Vec<usize>,
    rotation: usize,
    /// The caller has a group.
    grouped: bool,
    held: Vec<usize>,
    nearer: bool,
}

fn hints() -> impl Strategy<Value = ModeHint> {
    prop::sample::select(vec![
        ModeHint::Auto,
        ModeHint::Embedded,
        ModeHint::Local,
        ModeHint::Networked,
    ])
}

fn embeddings() -> impl Strategy<Value = EmbeddingState<'static>> {
    prop::sample::select(vec![
        EmbeddingState::No,
        EmbeddingState::Untrusted { reason: "cwasi.trust differs" },
        EmbeddingState::Loaded,
    ])
}

/// Instances 0 to 5, each on this host, elsewhere or both, as a map: an id is there once.
fn instances() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::btree_map(0..6_usize, any::<bool>(), 0..5)
        .prop_map(|instances| instances.into_iter().collect())
}

fn cases() -> impl Strategy<Value = Case> {
    let net = prop_oneof![1 => Just(Net::Off), 1 => Just(Net::Away), 4 => instances().prop_map(Net::Known)];
    let some = || prop::collection::vec(0..6_usize, 0..4);
    let held = prop_oneof![2 => Just(Vec::new()), 1 => some()];
    let group = (any::<bool>(), held, prop::bool::weighted(0.2));
    (hints(), embeddings(), instances(), net, some(), any::<usize>(), group).prop_map(
        |(hint, embedding, local, net, avoid, rotation, (grouped, held, nearer))| Case {
            hint,
            embedding,
            local,
            net,
            avoid,
            rotation,
            grouped,
            held,
            nearer,
        },
    )
}

/// What one mode has, by the rules: ids that may be tried.
struct Expected {
    embedded: bool,
    local: Vec<usize>,
    networked: Vec<usize>,
}

impl Case {
    fn allows(&self, hint: ModeHint) -> bool {
        self.hint == ModeHint::Auto || self.hint == hint
    }

    fn expected(&self) -> Expected {
        let open = |all: &[(usize, bool)]| -> Vec<usize> {
            all.iter().filter(|(_, allowed)| *allowed).map(|(id, _)| *id).collect()
        };
        let local = if self.allows(ModeHint::Local) { open(&self.local) } else { Vec::new() };
        let networked = match &self.net {
            Net::Known(all) if self.allows(ModeHint::Networked) => {
                let mut ids = open(all);
                if self.hint == ModeHint::Auto {
                    ids.retain(|id| !self.local.iter().any(|(here, _)| here == id));
                }
                ids
            }
            _ => Vec::new(),
        };
        let embedded = self.allows(ModeHint::Embedded) && self.embedding == EmbeddingState::Loaded;
        Expected { embedded, local, networked }
    }

    fn fresh(&self, ids: &[usize]) -> bool {
        ids.iter().any(|id| !self.avoid.contains(id))
    }

    fn is_own(&self, id: usize) -> bool {
        self.grouped && OWN.contains(&id)
    }

    /// Checks the order of instances on this host, and how many there are of the kind that comes first.
    fn check_local(&self, ids: &[usize], instances: usize, open: &[usize]) {
        let own: Vec<_> = open.iter().copied().filter(|id| self.is_own(*id)).collect();
        let stays = self.fresh(&own) || own.iter().any(|id| self.held.contains(id));
        if stays {
            assert!(self.is_own(ids[0]), "an instance of its own group serves the caller");
        }
        let kind = open.iter().filter(|id| self.is_own(**id) == self.is_own(ids[0])).count();
        assert_eq!(instances, kind);
        if self.held.is_empty() && !self.nearer {
            let mut all = ids.to_vec();
            all.sort_unstable();
            assert_eq!(all, open, "every instance can be tried");
            assert!(!self.avoid.contains(&ids[0]) || !self.fresh(open));
            return;
        }
        assert!(ids.iter().all(|id| !self.held.contains(id) && open.contains(id)));
        assert!(
            ids.iter().all(|id| self.is_own(*id) == self.is_own(ids[0])),
            "spread over one kind"
        );
        assert!(!self.nearer || self.is_own(ids[0]) && !self.avoid.contains(&ids[0]));
    }
}

fn sorted<'a>(ids: impl Iterator<Item = &'a String>) -> Vec<usize> {
    let mut ids: Vec<usize> = ids.map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn every_row_of_the_table_is_decided_by_the_rules(case in cases()) {
        let (caller, callee) = (identity("a"), identity("b"));
        let local: Vec<_> = case.local.iter().map(|(id, ok)| record(*id, *ok)).collect();
        let known: Vec<_> = match &case.net {
            Net::Known(all) => all.iter().map(|(id, ok)| location(*id, *ok)).collect(),
            _ => Vec::new(),
        };
        let remote = match &case.net {
            Net::Off => Remote::NotConfigured,
            Net::Away => Remote::Away { reason: "connection refused" },
            Net::Known(_) => Remote::Known(&known),
        };
        let avoid: Vec<_> = case.avoid.iter().map(usize::to_string).collect();
        let held: Vec<_> = case.held.iter().map(usize::to_string).collect();
        let facts = Facts {
            caller: &caller, callee: &callee, hint: case.hint, embedding: case.embedding, local: &local, remote,
            group: if case.grouped { "own" } else { "" }, avoid: &avoid, held: &held, nearer: case.nearer,
            beside: &[], rotation: case.rotation,
        };
        let expected = case.expected();
        match select(&facts) {
            Selection::Embedded { .. } => prop_assert!(expected.embedded),
            Selection::Local { candidates, instances, .. } => {
                prop_assert!(!expected.embedded);
                prop_assert!(case.nearer || case.fresh(&expected.local) || !case.fresh(&expected.networked));
                let ids: Vec<usize> = candidates.iter().map(|one| one.instance.parse().unwrap()).collect();
                case.check_local(&ids, instances, &expected.local);
            }
            Selection::NoOther { .. } => prop_assert!(!expected.embedded && (case.nearer || !case.held.is_empty())),
            Selection::Networked { candidates, .. } => {
                prop_assert!(!expected.embedded && !case.nearer);
                prop_assert_eq!(sorted(candidates.iter().map(|one| &one.instance)), expected.networked.clone());
                prop_assert!(!case.fresh(&expected.local));
                prop_assert!(expected.local.is_empty() || case.fresh(&expected.networked));
                let first: usize = candidates[0].instance.parse().unwrap();
                prop_assert!(!case.avoid.contains(&first) || !case.fresh(&expected.networked));
            }
            Selection::Unroutable(none) => {
                let (errno, message) = (none.errno, none.to_string());
                prop_assert!(!expected.embedded && expected.local.is_empty() && expected.networked.is_empty());
                for mode in ["embedded: ", "local: ", "networked: "] {
                    prop_assert!(message.contains(mode), "{}", message);
                }
                prop_assert!([Errno::Refused, Errno::Unreachable, Errno::NoSuchFunction].contains(&errno));
                let refused = case.allows(ModeHint::Local) && !case.local.is_empty();
                prop_assert!(!refused || errno == Errno::Refused, "{}", message);
            }
        }
    }
}

/// One row of the table of errors: what is out, and the code with its words.
#[test]
fn errors_name_why_each_mode_is_out() {
    let (caller, callee) = (identity("a"), identity("b"));
    let untrusted = EmbeddingState::Untrusted { reason: "cwasi.trust differs" };
    let table: [(ModeHint, EmbeddingState<'_>, Remote<'_>, Errno, &str); 6] = [
        (
            ModeHint::Auto,
            EmbeddingState::No,
            Remote::NotConfigured,
            Errno::NoSuchFunction,
            "has no redis_url",
        ),
        (
            ModeHint::Auto,
            untrusted,
            Remote::Known(&[]),
            Errno::NoSuchFunction,
            "cwasi.trust differs",
        ),
        (
            ModeHint::Embedded,
            untrusted,
            Remote::Known(&[]),
            Errno::Refused,
            "cwasi.mode=embedded forbids it",
        ),
        (
            ModeHint::Auto,
            EmbeddingState::No,
            Remote::Away { reason: "timed out" },
            Errno::Unreachable,
            "timed out",
        ),
        (
            ModeHint::Local,
            EmbeddingState::Loaded,
            Remote::Away { reason: "x" },
            Errno::NoSuchFunction,
            "no instance on this host",
        ),
        (
            ModeHint::Networked,
            EmbeddingState::Loaded,
            Remote::NotConfigured,
            Errno::NoSuchFunction,
            "cwasi.mode=networked forbids it",
        ),
    ];
    for (hint, embedding, remote, expected, words) in table {
        let facts = Facts { hint, embedding, remote, ..unknown(&caller, &callee) };
        let Selection::Unroutable(none) = select(&facts) else { panic!("{hint:?}") };
        let message = none.to_string();
        assert_eq!(none.errno, expected, "{message}");
        assert!(message.contains(words), "{words} missing in: {message}");
    }
}

/// An edge to a callee of which no instance is known.
const fn unknown<'a>(caller: &'a Identity, callee: &'a Identity) -> Facts<'a> {
    Facts {
        caller,
        callee,
        hint: ModeHint::Auto,
        embedding: EmbeddingState::No,
        local: &[],
        remote: Remote::NotConfigured,
        group: "",
        avoid: &[],
        held: &[],
        nearer: false,
        beside: &[],
        rotation: 0,
    }
}

/// The last sentence is about the reason why there is no route.
#[test]
fn the_advice_fits_the_reason() {
    let (caller, callee) = (identity("a"), identity("b"));
    let refused = [record(0, false)];
    let role = "cwasi.role=secondary";
    let table: [(&[Record], Remote<'_>, &str, bool); 5] = [
        (&[], Remote::NotConfigured, role, true),
        (&[], Remote::Known(&[]), role, true),
        (
            &[],
            Remote::Away { reason: "Redis is away: timed out" },
            "`cwasi doctor` examines them",
            false,
        ),
        (&[], Remote::Vanished { since: Duration::from_secs(7) }, "when its node is back", false),
        (&refused, Remote::Away { reason: "Redis is away" }, "networked: Redis is away", false),
    ];
    for (local, remote, end, is_role) in table {
        let facts = Facts { local, remote, ..unknown(&caller, &callee) };
        let Selection::Unroutable(none) = select(&facts) else { panic!("{end}") };
        let message = none.to_string();
        let (_, last) = message.rsplit_once("networked: ").unwrap();
        assert!(format!("networked: {last}").contains(end), "{end} missing in: {message}");
        assert_eq!(message.contains(role), is_role, "{message}");
    }
}

/// A function that is started on demand: its callers' shim holds the call, unless something else serves it, or the
/// caller may not call it.
#[test]
fn a_function_that_is_started_on_demand_is_networked() {
    let (caller, callee) = (identity("a"), identity("b"));
    let announcements = [true, false].map(|allowed| Location {
        node: String::new(),
        instance: String::new(),
        ..location(0, allowed)
    });
    let local = [record(7, true)];
    let facts = |hint, local, allowed: bool| Facts {
        hint,
        local,
        remote: Remote::OnDemand(&announcements[usize::from(!allowed)]),
        ..unknown(&caller, &callee)
    };
    let held = select(&facts(ModeHint::Auto, &[], true));
    let Selection::Networked { candidates, reason } = held else { panic!("{held:?}") };
    assert_eq!((candidates.len(), reason.as_str()), (1, "callee is started on demand"));
    assert!(matches!(select(&facts(ModeHint::Auto, &local, true)), Selection::Local { .. }));
    let refused = select(&facts(ModeHint::Auto, &[], false));
    let Selection::Unroutable(none) = refused else { panic!("{refused:?}") };
    assert_eq!(none.errno, Errno::Refused);
    let local_only = select(&facts(ModeHint::Local, &[], true));
    let Selection::Unroutable(none) = local_only else { panic!("{local_only:?}") };
    assert_eq!(none.errno, Errno::NoSuchFunction);
}
