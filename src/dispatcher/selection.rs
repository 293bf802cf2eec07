//! Which mode serves an edge: a pure function of facts (paper Algorithm 2 reads bundles; we read a registry).
//!
//! Runs in the shim's broker. The same reasons go into the hop table and into the guest's error message.

use cwasi_abi::Errno;

use crate::coordinator::registry::Record;
use crate::wire::ids::Identity;

/// What selection knows about one edge.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Who calls.
    pub caller: &'a Identity,
    /// Who is called.
    pub callee: &'a Identity,
    /// Instances of the callee on this host.
    pub local: &'a [Record],
    /// Instances that did not answer this caller just now.
    pub avoid: &'a [String],
    /// Other functions in the callee's scope on this host, for the message.
    pub beside: &'a [String],
    /// Spreads callers over instances: any number that changes from question to question.
    pub rotation: usize,
}

/// What selection decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// Local buffer: try these instances in this order.
    Local {
        /// At least one.
        candidates: Vec<&'a Record>,
        /// Why this mode.
        reason: String,
    },
    /// No mode can serve the edge.
    Unroutable {
        /// Guest-visible code.
        errno: Errno,
        /// Reasons.
        message: String,
    },
}

/// The callee that `target` names for a caller: `name` in the caller's scope, or `namespace/name`, where
/// the namespace is the pod's under Kubernetes and containerd's otherwise.
#[must_use]
pub fn callee_of(caller: &Identity, target: &str) -> Identity {
    let Some((namespace, function)) = target.rsplit_once('/') else {
        return caller.sibling(target);
    };
    let mut callee = caller.sibling(function);
    let scope = if caller.pod_namespace.is_empty() {
        &mut callee.namespace
    } else {
        &mut callee.pod_namespace
    };
    namespace.clone_into(scope);
    callee
}

/// Decides one edge.
#[must_use]
pub fn select<'a>(facts: &Facts<'a>) -> Selection<'a> {
    if facts.local.is_empty() {
        return Selection::Unroutable { errno: Errno::NoSuchFunction, message: nobody(facts) };
    }
    let (allowed, refused): (Vec<_>, Vec<_>) =
        facts.local.iter().partition(|record| may_call(facts.caller, record));
    if allowed.is_empty() {
        let message =
            refused.first().map_or_else(String::new, |record| refusal(facts.caller, record));
        return Selection::Unroutable { errno: Errno::Refused, message };
    }
    let mut candidates = allowed;
    let shift = facts.rotation % candidates.len();
    candidates.rotate_left(shift);
    // Stable: instances that just failed come last, the others keep their turn.
    candidates.sort_by_key(|record| facts.avoid.contains(&record.instance));
    let reason = match candidates.len() {
        1 => "callee on this host".to_owned(),
        n => format!("callee on this host ({n} instances)"),
    };
    Selection::Local { candidates, reason }
}

/// Policy `cwasi.allow`: without it, functions of the same scope may call.
///
/// An entry is `*`, a function name in the callee's scope, `namespace/*` or `namespace/name`.
#[must_use]
pub fn may_call(caller: &Identity, callee: &Record) -> bool {
    if callee.allow.is_empty() {
        return caller.same_scope(&callee.identity);
    }
    let namespace =
        if caller.pod_namespace.is_empty() { &caller.namespace } else { &caller.pod_namespace };
    callee.allow.iter().any(|entry| match entry.split_once('/') {
        None if entry == "*" => true,
        None => caller.same_scope(&callee.identity) && *entry == caller.function,
        Some((scope, name)) => scope == namespace && (name == "*" || name == caller.function),
    })
}

fn nobody(facts: &Facts<'_>) -> String {
    let callee = facts.callee;
    let beside = match facts.beside {
        [] => "no function is registered there".to_owned(),
        names => format!("registered there: {}", names.join(", ")),
    };
    format!(
        "no function `{}` in namespace `{}` on this host; {beside}. Start it with cwasi.role=secondary and \
         cwasi.function={} (networked buffer: not yet available)",
        callee.function,
        if callee.pod_namespace.is_empty() { &callee.namespace } else { &callee.pod_namespace },
        callee.function,
    )
}

fn refusal(caller: &Identity, callee: &Record) -> String {
    let rule = if callee.allow.is_empty() {
        "it takes calls from its own namespace only".to_owned()
    } else {
        format!("its cwasi.allow is {}", callee.allow.join(","))
    };
    format!("{} may not call {}: {rule}", caller, callee.identity)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(namespace: &str, pod_namespace: &str, function: &str) -> Identity {
        Identity {
            namespace: namespace.into(),
            pod_namespace: pod_namespace.into(),
            function: function.into(),
        }
    }

    fn record(identity: &Identity, instance: &str, allow: &[&str]) -> Record {
        Record {
            identity: identity.clone(),
            instance: instance.into(),
            workflow: String::new(),
            trust: String::new(),
            allow: allow.iter().map(|&entry| entry.to_owned()).collect(),
            socket: "/s".into(),
            max_payload: 1,
            container: "c".into(),
        }
    }

    #[test]
    fn allow_is_exact() {
        let callee = identity("n", "", "b");
        let table: [(&[&str], Identity, bool); 11] = [
            (&[], identity("n", "", "a"), true),
            (&[], identity("m", "", "a"), false),
            (&["*"], identity("m", "", "a"), true),
            (&["a"], identity("n", "", "a"), true),
            (&["a"], identity("n", "", "c"), false),
            (&["a"], identity("m", "", "a"), false),
            (&["m/*"], identity("m", "", "a"), true),
            (&["m/a"], identity("m", "", "a"), true),
            (&["m/a"], identity("m", "", "c"), false),
            (&["n/*"], identity("n", "p", "a"), false),
            (&["p/*"], identity("n", "p", "a"), true),
        ];
        for (allow, caller, expected) in table {
            assert_eq!(
                may_call(&caller, &record(&callee, "1", allow)),
                expected,
                "{allow:?} {caller}"
            );
        }
    }

    #[test]
    fn targets_name_scopes() {
        assert_eq!(callee_of(&identity("n", "", "a"), "b"), identity("n", "", "b"));
        assert_eq!(callee_of(&identity("n", "", "a"), "m/b"), identity("m", "", "b"));
        assert_eq!(callee_of(&identity("k8s.io", "p", "a"), "q/b"), identity("k8s.io", "q", "b"));
    }

    proptest! {
        #[test]
        fn every_allowed_instance_is_a_candidate_and_no_other(
            allowed in proptest::collection::vec(any::<bool>(), 0..6), rotation: usize, avoided in 0_usize..6
        ) {
            let (caller, callee) = (identity("n", "", "a"), identity("n", "", "b"));
            let records: Vec<_> = allowed
                .iter()
                .enumerate()
                .map(|(i, ok)| record(&callee, &i.to_string(), if *ok { &["a"] } else { &["z"] }))
                .collect();
            let avoid = [avoided.to_string()];
            let facts = Facts { caller: &caller, callee: &callee, local: &records, avoid: &avoid, beside: &[], rotation };
            match select(&facts) {
                Selection::Local { candidates, .. } => {
                    prop_assert_eq!(candidates.len(), allowed.iter().filter(|ok| **ok).count());
                    if candidates.len() > 1 {
                        prop_assert_ne!(&candidates[0].instance, &avoid[0]);
                    }
                }
                Selection::Unroutable { errno, .. } => {
                    let expected = if records.is_empty() { Errno::NoSuchFunction } else { Errno::Refused };
                    prop_assert_eq!(errno, expected);
                    prop_assert!(!allowed.contains(&true));
                }
            }
        }
    }
}
