//! Drops the privileges of a function's processes: they keep the capabilities that a program of the same container
//! would have after its exec, and cannot access each other.
//!
//! A function never execs. libcontainer relies on an exec: it leaves capability sets that the specification does not
//! name unchanged (containerd writes `{}` for "drop all"), and keeps the others across `setuid`. Without this, a
//! process of uid 1000 would keep the host root's capabilities.

use std::collections::HashSet;

use caps::errors::CapsError;
use caps::{CapSet, Capability};
use libcontainer::capabilities::CapabilityExt;
use libcontainer::oci_spec::runtime::{Capabilities, LinuxCapabilities, Spec};

/// The privileges cannot be given up; the function must not run.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("the {set:?} capabilities cannot be given up")]
    Capabilities {
        set: CapSet,
        /// What the kernel says; often that seccomp forbids capset.
        #[source]
        source: CapsError,
    },
    /// The way into init and workers for each other.
    #[error(
        "the process cannot be made non-dumpable, which keeps other processes of its function out"
    )]
    Dumpable {
        /// What the kernel says.
        #[source]
        source: nix::Error,
    },
    /// The way back by programs with file capabilities.
    #[error("no_new_privs cannot be set")]
    NoNewPrivileges {
        /// What the kernel says.
        #[source]
        source: nix::Error,
    },
}

/// Gives up what an exec would have taken away, for good.
///
/// # Errors
/// When the kernel refuses.
pub fn give_up(spec: &Spec) -> Result<(), PrivilegeError> {
    // All processes of a function have one user. A compromised worker must not trace the others, or write their
    // memory. Inherited by every fork.
    nix::sys::prctl::set_dumpable(false).map_err(|source| PrivilegeError::Dumpable { source })?;
    nix::sys::prctl::set_no_new_privs()
        .map_err(|source| PrivilegeError::NoNewPrivileges { source })?;
    let process = spec.process().as_ref();
    let root = process.is_none_or(|process| process.user().uid() == 0);
    let named = process.and_then(|process| process.capabilities().as_ref());
    let kept = after_exec(root, named);
    let failed = |set| move |source| PrivilegeError::Capabilities { set, source };
    // The bounding set first: dropping from it needs a capability. It limits what an exec may gain, which is nothing
    // with no_new_privs: a process that has no capabilities keeps the set.
    let has_any =
        !caps::read(None, CapSet::Permitted).map_err(failed(CapSet::Permitted))?.is_empty();
    let bounding = names(named.and_then(|named| named.bounding().as_ref()));
    let present = caps::read(None, CapSet::Bounding).map_err(failed(CapSet::Bounding))?;
    for capability in present.difference(&bounding).filter(|_| has_any) {
        caps::drop(None, CapSet::Bounding, *capability).map_err(failed(CapSet::Bounding))?;
    }
    if !caps::read(None, CapSet::Ambient).map_err(failed(CapSet::Ambient))?.is_empty() {
        caps::clear(None, CapSet::Ambient).map_err(failed(CapSet::Ambient))?;
    }
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let present = caps::read(None, set).map_err(failed(set))?;
        let rest = match set {
            CapSet::Inheritable => HashSet::new(),
            _ => present.intersection(&kept).copied().collect(),
        };
        if rest != present {
            caps::set(None, set, &rest).map_err(failed(set))?;
        }
    }
    Ok(())
}

/// Root keeps the permitted and effective sets, other users only the ambient set.
fn after_exec(root: bool, named: Option<&LinuxCapabilities>) -> HashSet<Capability> {
    let Some(named) = named else { return HashSet::new() };
    if root {
        let effective = names(named.effective().as_ref());
        effective.intersection(&names(named.permitted().as_ref())).copied().collect()
    } else {
        names(named.ambient().as_ref())
    }
}

fn names(set: Option<&Capabilities>) -> HashSet<Capability> {
    set.into_iter().flatten().map(CapabilityExt::to_cap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(json: &str) -> LinuxCapabilities {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn sets_that_are_not_named_are_empty() {
        assert!(after_exec(true, None).is_empty());
        // What containerd writes for "drop all".
        assert!(after_exec(true, Some(&named("{}"))).is_empty());
        assert!(after_exec(false, Some(&named("{}"))).is_empty());
    }

    #[test]
    fn only_root_keeps_capabilities_that_are_not_ambient() {
        let some = named(
            r#"{"effective":["CAP_CHOWN","CAP_KILL"],"permitted":["CAP_CHOWN"],"ambient":["CAP_KILL"]}"#,
        );
        assert_eq!(after_exec(true, Some(&some)), HashSet::from([Capability::CAP_CHOWN]));
        assert_eq!(after_exec(false, Some(&some)), HashSet::from([Capability::CAP_KILL]));
    }
}
