//! Names and permissions: the identity of a target, and whether it allows a caller (`cwasi.allow`). Runs in
//! processes of the host. Pure.

use cwasi_modes::causes::Refusal;
use cwasi_wire::ids::Identity;

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

/// Policy `cwasi.allow` of a callee: without it, functions of the same scope may call.
///
/// An entry is `*`, a function name in the callee's scope, `namespace/*` or `namespace/name`.
#[must_use]
pub fn may_call(caller: &Identity, callee: &Identity, allow: &[String]) -> bool {
    if allow.is_empty() {
        return caller.same_scope(callee);
    }
    let namespace = scope_of(caller);
    allow.iter().any(|entry| match entry.split_once('/') {
        None if entry == "*" => true,
        None => caller.same_scope(callee) && *entry == caller.function,
        Some((scope, name)) => scope == namespace && (name == "*" || name == caller.function),
    })
}

/// A deployed function: identity, `cwasi.workflow` and `cwasi.trust`, empty if not set.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub identity: &'a Identity,
    pub workflow: &'a str,
    pub trust: &'a str,
}

impl Member<'_> {
    /// The one group inside which it lends memory: its trust group, or else its workflow.
    fn group(&self) -> Option<(bool, &str)> {
        [(true, self.trust), (false, self.workflow)].into_iter().find(|(_, name)| !name.is_empty())
    }
}

/// Whether two functions lend memory to each other: within one scope and one group. Each has one group only, so that
/// what is lent on never leaves it.
#[must_use]
pub fn may_lend(one: Member<'_>, other: Member<'_>) -> bool {
    let group = one.group();
    group.is_some() && group == other.group() && one.identity.same_scope(other.identity)
}

/// Why [`may_call`] says no, for the caller.
#[must_use]
pub fn refusal(caller: &Identity, callee: &Identity, allow: &[String]) -> Refusal {
    let (caller, callee) = (caller.clone(), callee.clone());
    if allow.is_empty() {
        Refusal::Namespace { caller, callee }
    } else {
        Refusal::NotAllowed { caller, callee, allow: allow.to_vec() }
    }
}

/// The namespace that users know: the pod's under Kubernetes, containerd's otherwise.
#[must_use]
pub fn scope_of(identity: &Identity) -> &str {
    if identity.pod_namespace.is_empty() { &identity.namespace } else { &identity.pod_namespace }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(namespace: &str, pod_namespace: &str, function: &str) -> Identity {
        Identity {
            namespace: namespace.into(),
            pod_namespace: pod_namespace.into(),
            function: function.into(),
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
            let allow: Vec<_> = allow.iter().map(|&entry| entry.to_owned()).collect();
            assert_eq!(may_call(&caller, &callee, &allow), expected, "{allow:?} {caller}");
        }
    }

    #[test]
    fn memory_is_lent_within_one_group_of_one_scope() {
        let (here, there) = (identity("n", "p", "a"), identity("n", "q", "a"));
        for (one, other, expected) in [
            (("", ""), ("", ""), false),
            (("w", ""), ("w", ""), true),
            (("w", ""), ("v", ""), false),
            (("w", "t"), ("v", "t"), true),
            (("w", "t"), ("w", "u"), false),
            (("w", "t"), ("w", ""), false),
            (("x", ""), ("", "x"), false),
        ] {
            let of = |identity, (workflow, trust)| Member { identity, workflow, trust };
            let (one, elsewhere, other) = (of(&here, one), of(&there, other), of(&here, other));
            assert_eq!(may_lend(one, other), expected, "{one:?} {other:?}");
            assert_eq!(may_lend(other, one), expected, "{one:?} {other:?}");
            assert!(!may_lend(one, elsewhere));
        }
    }

    #[test]
    fn targets_name_scopes() {
        assert_eq!(callee_of(&identity("n", "", "a"), "b"), identity("n", "", "b"));
        assert_eq!(callee_of(&identity("n", "", "a"), "m/b"), identity("m", "", "b"));
        assert_eq!(callee_of(&identity("k8s.io", "p", "a"), "q/b"), identity("k8s.io", "q", "b"));
    }
}
