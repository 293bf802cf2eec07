//! What a container's specification says about its place, its start and its end.

use std::path::Path;

use oci_spec::runtime::{LinuxNamespaceType, Spec};

/// The path for its cgroups that the container asks for.
pub fn cgroups_path(spec: &Spec) -> Option<&Path> {
    spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_deref())
}

/// True when the container gets a new pid namespace: then the kernel ends its processes with its init.
pub fn has_own_pids(spec: &Spec) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    namespaces
        .into_iter()
        .flatten()
        .any(|namespace| namespace.typ() == LinuxNamespaceType::Pid && namespace.path().is_none())
}

/// True when hooks run at the start of such a container in the host's namespaces; init runs the others itself.
pub fn has_start_hooks(spec: &Spec) -> bool {
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.poststart().as_ref());
    hooks.is_some_and(|hooks| !hooks.is_empty())
}

/// True when libcontainer does more at the end of such a container than to remove its cgroups and files.
pub fn has_aftermath(spec: &Spec) -> bool {
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.poststop().as_ref());
    let linux = spec.linux().as_ref();
    hooks.is_some_and(|hooks| !hooks.is_empty())
        || linux.is_some_and(|linux| linux.intel_rdt().is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_spec_says_what_start_and_end_take() {
        let hook = json!([{ "path": "/bin/true" }]);
        let table: [(Value, bool, bool); 7] = [
            (json!({}), false, false),
            (json!({ "hooks": {}, "linux": {} }), false, false),
            (json!({ "hooks": { "poststart": [], "poststop": [] } }), false, false),
            (json!({ "hooks": { "createContainer": hook, "prestart": hook } }), false, false),
            (json!({ "hooks": { "poststart": hook } }), true, false),
            (json!({ "hooks": { "poststop": hook } }), false, true),
            (json!({ "linux": { "intelRdt": { "closID": "c" } } }), false, true),
        ];
        for (mut text, at_start, at_end) in table {
            text["ociVersion"] = json!("1.0.2");
            let spec: Spec = serde_json::from_value(text.clone()).unwrap();
            assert_eq!(
                (has_start_hooks(&spec), has_aftermath(&spec)),
                (at_start, at_end),
                "{text}"
            );
        }
    }
}
