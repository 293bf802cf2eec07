//! Chooses the mode of an edge: a pure function of facts (paper Algorithm 2 reads bundles; this reads the registry).
//! Runs in processes of the host. A worker decides alone whether a callee is embedded (`dispatcher::embedded`).
//!
//! The reasons go into the hop table and into the guest's error message, mode by mode.
//!
//! `auto` takes the first mode that can serve, in the order embedded, local, networked. A mode whose instances all
//! just failed this caller comes after one with other instances. Any other hint forces its mode or fails.
//!
//! Instances of the caller's own group (its pod, or its workflow outside pods) come first on this host. Calls spread
//! over these only: an instance of another pod may be of another version.

mod policy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use cwasi_abi::Errno;

use crate::registry::Record;
use cwasi_modes::ModeKind;
use cwasi_wire::control::ModeHint;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;

pub use policy::{Member, callee_of, may_call, may_lend, refusal, scope_of};

/// Whether the callee is embedded in the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingState<'a> {
    /// Not requested.
    No,
    /// Named or imported, but not trusted, or of another engine.
    Untrusted {
        /// The failed rule, and how to satisfy it.
        reason: &'a str,
    },
    Loaded,
}

/// Facts about instances on other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote<'a> {
    /// This node has neither `redis_url` nor `link_peers`.
    NotConfigured,
    /// Redis does not answer, or a node in its place.
    Away {
        /// The reason, for the caller's error; begins with whom it is about.
        reason: &'a str,
    },
    /// Redis listed instances until recently.
    Vanished {
        /// Time since then.
        since: Duration,
    },
    /// The listed instances, this host's own included.
    Known(&'a [Location]),
    /// None, and one is started when it is called: the function's announcement.
    OnDemand(&'a Location),
}

/// Facts about one edge.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub caller: &'a Identity,
    pub callee: &'a Identity,
    /// The caller's group; empty if it has none.
    pub group: &'a str,
    /// The caller's `cwasi.mode`.
    pub hint: ModeHint,
    /// Whether the callee is embedded.
    pub embedding: EmbeddingState<'a>,
    /// Instances of the callee on this host.
    pub local: &'a [Record],
    /// Instances on other hosts.
    pub remote: Remote<'a>,
    /// Instances that recently did not answer this caller.
    pub avoid: &'a [String],
    /// Instances with connections from this caller; not selected.
    pub held: &'a [String],
    /// True to select only instances of the caller's own group.
    pub nearer: bool,
    /// Other functions in the callee's scope on this host, for the message.
    pub beside: &'a [String],
    /// Spreads callers over instances: a number that changes from request to request.
    pub rotation: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// A call inside the caller's process.
    Embedded {
        /// The reason for the mode.
        reason: String,
    },
    /// Local buffer: the instances to try, in order.
    Local {
        /// At least one.
        candidates: Vec<&'a Record>,
        /// Number of instances of the first kind.
        instances: usize,
        /// The reason for the mode.
        reason: String,
    },
    /// The caller holds every suitable instance on this host.
    NoOther {
        /// How many there are of the kind that comes first.
        instances: usize,
    },
    /// Networked buffer: try these instances in this order.
    Networked {
        /// At least one.
        candidates: Vec<&'a Location>,
        reason: String,
    },
    /// No mode can serve the edge.
    Unroutable(NoRoute),
}

/// The callee, and the reason of each mode why it cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no route to function `{name}` in namespace `{scope}`: embedded: {embedded}; local: {local}; networked: \
     {networked}{advice}"
)]
pub struct NoRoute {
    pub errno: Errno,
    pub name: String,
    /// Where it was looked for.
    pub scope: String,
    /// Why it is not served in the caller's VM.
    pub embedded: String,
    /// Why by no instance on this host.
    pub local: String,
    /// Why by none on another host.
    pub networked: String,
    /// A sentence that says what to do; empty where a mode's reason does.
    pub advice: String,
}

/// Why one mode cannot serve an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// Guest-visible code if this mode decides.
    pub errno: Errno,
    pub why: String,
}

/// Instances of one mode that may be tried, in order.
#[derive(Debug)]
struct Usable<'a, T> {
    candidates: Vec<&'a T>,
    reason: String,
    /// False when every one of them just failed this caller.
    fresh: bool,
}

#[must_use]
pub fn select<'a>(facts: &Facts<'a>) -> Selection<'a> {
    let inside = embedded(facts.hint, facts.embedding);
    if let Ok(reason) = inside {
        return Selection::Embedded { reason };
    }
    let here = admitted(facts.hint, ModeKind::Local).and_then(|()| local(facts));
    if facts.nearer {
        return here.map_or(Selection::NoOther { instances: 0 }, |here| here.local(facts));
    }
    let away = admitted(facts.hint, ModeKind::Networked).and_then(|()| networked(facts));
    match (here, away) {
        (Ok(here), Ok(away)) if !here.fresh && away.fresh => away.networked(),
        (Ok(here), _) => here.local(facts),
        (_, Ok(away)) => away.networked(),
        (Err(here), Err(away)) => unroutable(facts, inside.err(), here, away),
    }
}

/// Whether the callee is served inside the caller's VM.
///
/// # Errors
/// Why it is not.
pub fn embedded(hint: ModeHint, embedding: EmbeddingState<'_>) -> Result<String, Out> {
    admitted(hint, ModeKind::Embedded)?;
    match embedding {
        EmbeddingState::Loaded => Ok("callee embedded in the caller".to_owned()),
        EmbeddingState::No => {
            Err(Out { errno: Errno::NoSuchFunction, why: "it is not embedded".to_owned() })
        }
        EmbeddingState::Untrusted { reason } => {
            Err(Out { errno: Errno::Refused, why: format!("may not be embedded: {reason}") })
        }
    }
}

/// A hint forbids every other mode.
fn admitted(hint: ModeHint, mode: ModeKind) -> Result<(), Out> {
    let forced = match hint {
        ModeHint::Auto => return Ok(()),
        ModeHint::Embedded => ModeKind::Embedded,
        ModeHint::Local => ModeKind::Local,
        ModeHint::Networked => ModeKind::Networked,
    };
    if forced == mode {
        return Ok(());
    }
    let why = format!("the caller's cwasi.mode={} forbids it", hint.name());
    Err(Out { errno: Errno::NoSuchFunction, why })
}

fn local<'a>(facts: &Facts<'a>) -> Result<Usable<'a, Record>, Out> {
    if facts.local.is_empty() {
        let beside = match facts.beside {
            [] => "none is registered there".to_owned(),
            names => format!("registered there: {}", names.join(", ")),
        };
        let why = format!("no instance on this host ({beside})");
        return Err(Out { errno: Errno::NoSuchFunction, why });
    }
    let mut usable = usable(facts, facts.local, |record| (&record.instance, &record.allow))?;
    // Stable: within a kind, instances keep their turn.
    let failed = |record: &Record| facts.avoid.contains(&record.instance);
    usable.candidates.sort_by_key(|record| (failed(record), !facts.is_own(record)));
    Ok(usable)
}

impl Facts<'_> {
    /// True for an instance of the caller's own group.
    fn is_own(&self, record: &Record) -> bool {
        !self.group.is_empty() && record.group == self.group
    }
}

fn networked<'a>(facts: &Facts<'a>) -> Result<Usable<'a, Location>, Out> {
    let no = |errno, why: String| Err(Out { errno, why });
    let all = match facts.remote {
        Remote::NotConfigured => {
            return no(Errno::NoSuchFunction, "this node has no redis_url".to_owned());
        }
        Remote::Away { reason } => {
            return no(Errno::Unreachable, reason.to_owned());
        }
        Remote::Vanished { since } => {
            let why = "its instances on other hosts were not announced again";
            return no(Errno::Unreachable, format!("{why} for {} s", since.as_secs()));
        }
        Remote::Known(all) => all,
        Remote::OnDemand(announcement) => {
            let usable = usable(facts, [announcement], |it| (&it.instance, &it.allow))?;
            return Ok(Usable { reason: "callee is started on demand".to_owned(), ..usable });
        }
    };
    // Instances on this host are reached directly, unless the caller forces the network.
    let here = |location: &&Location| {
        facts.local.iter().any(|record| record.instance == location.instance)
    };
    let forced = facts.hint == ModeHint::Networked;
    let elsewhere: Vec<_> = all.iter().filter(|location| forced || !here(location)).collect();
    if elsewhere.is_empty() {
        return no(Errno::NoSuchFunction, "no instance on another host".to_owned());
    }
    let usable = usable(facts, elsewhere, |location| (&location.instance, &location.allow))?;
    let what = if forced { "cwasi.mode=networked" } else { "callee on another host" };
    let reason = counted(what, usable.candidates.len());
    Ok(Usable { reason, ..usable })
}

/// The instances that the caller may call, those that just failed last, the others in turn.
fn usable<'a, T>(
    facts: &Facts<'a>,
    all: impl IntoIterator<Item = &'a T>,
    parts: impl Fn(&T) -> (&String, &Vec<String>),
) -> Result<Usable<'a, T>, Out> {
    let (mut candidates, refused): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| may_call(facts.caller, facts.callee, parts(one).1));
    if candidates.is_empty() {
        let why = refused.first().map_or_else(String::new, |one| {
            refusal(facts.caller, facts.callee, parts(one).1).to_string()
        });
        return Err(Out { errno: Errno::Refused, why });
    }
    let shift = facts.rotation % candidates.len();
    candidates.rotate_left(shift);
    let failed = |one: &&T| facts.avoid.contains(parts(one).0);
    // Stable: the others keep their turn.
    candidates.sort_by_key(failed);
    let fresh = candidates.first().is_some_and(|first| !failed(first));
    Ok(Usable { candidates, reason: String::new(), fresh })
}

impl<'a> Usable<'a, Record> {
    fn local(self, facts: &Facts<'_>) -> Selection<'a> {
        let mut candidates = self.candidates;
        // One that is held serves: the caller is not sent out of its group because others of that do not.
        let holds =
            |record: &&Record| facts.is_own(record) && facts.held.contains(&record.instance);
        let own = candidates.first().is_some_and(|first| facts.is_own(first))
            || candidates.iter().any(holds);
        let same = |record: &&Record| facts.is_own(record) == own;
        let instances = candidates.iter().copied().filter(same).count();
        if facts.nearer || !facts.held.is_empty() {
            candidates.retain(|record| same(record) && !facts.held.contains(&record.instance));
        }
        // Those that failed are last.
        let failed = |record: &&Record| facts.avoid.contains(&record.instance);
        let nearer = own && candidates.first().is_some_and(|first| !failed(first));
        if candidates.is_empty() || (facts.nearer && !nearer) {
            return Selection::NoOther { instances };
        }
        let whose = if own { "callee in the caller's own group" } else { "callee on this host" };
        Selection::Local { candidates, instances, reason: counted(whose, instances) }
    }
}

impl<'a> Usable<'a, Location> {
    fn networked(self) -> Selection<'a> {
        Selection::Networked { candidates: self.candidates, reason: self.reason }
    }
}

fn counted(what: &str, instances: usize) -> String {
    match instances {
        1 => what.to_owned(),
        n => format!("{what} ({n} instances)"),
    }
}

fn unroutable<'a>(facts: &Facts<'_>, inside: Option<Out>, here: Out, away: Out) -> Selection<'a> {
    let callee = facts.callee;
    let inside = inside.unwrap_or(Out { errno: Errno::Internal, why: String::new() });
    // A callee that refuses is known to exist; one that Redis may know is not known to be missing.
    let admitted =
        [(ModeKind::Embedded, &inside), (ModeKind::Local, &here), (ModeKind::Networked, &away)]
            .map(|(mode, out)| (admitted(facts.hint, mode).is_ok(), out.errno));
    let decides = |errno: Errno| admitted.contains(&(true, errno));
    let errno = if decides(Errno::Refused) && !only_untrusted(facts, &here, &away) {
        Errno::Refused
    } else if decides(Errno::Unreachable) {
        Errno::Unreachable
    } else {
        Errno::NoSuchFunction
    };
    Selection::Unroutable(NoRoute {
        errno,
        advice: advice(errno, facts),
        name: callee.function.clone(),
        scope: policy::scope_of(callee).to_owned(),
        embedded: inside.why,
        local: here.why,
        networked: away.why,
    })
}

/// What to do about a callee that no mode reaches.
fn advice(errno: Errno, facts: &Facts<'_>) -> String {
    match (errno, facts.remote) {
        // The refusal names the setting.
        (Errno::Refused, _) => String::new(),
        (Errno::Unreachable, Remote::Away { .. }) => {
            ". Call again when this node reaches its Redis or its link_peers, which know the instances on other hosts: \
             `cwasi doctor` examines them"
                .to_owned()
        }
        (Errno::Unreachable, _) => {
            ". Call again when its node is back, or start it on another node".to_owned()
        }
        _ => {
            let name = &facts.callee.function;
            format!(". A callee runs with cwasi.role=secondary and cwasi.function={name}")
        }
    }
}

/// True if the only refusal is missing trust for embedding the callee, which forbids no other mode.
fn only_untrusted(facts: &Facts<'_>, here: &Out, away: &Out) -> bool {
    facts.hint != ModeHint::Embedded && here.errno != Errno::Refused && away.errno != Errno::Refused
}
