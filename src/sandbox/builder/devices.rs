//! Device rules on a host with cgroup v2: libcgroups enforces those of cgroup v1 only. Runs in the builder.
//!
//! libcgroups's feature `cgroupsv2_devices` uses libbpf. That needs a C build with libelf and zlib, changes the
//! container's `RLIMIT_MEMLOCK`, and removes the rules at each update of other limits. This file loads a program
//! before the container is built and attaches it to the cgroup before the workload starts. It stays as long as the
//! cgroup.

use std::path::Path;

use libcgroups::common::{CgroupSetup, DEFAULT_CGROUP_ROOT, get_cgroup_setup};
use libcontainer::oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, Spec};

use crate::device_program::{DeviceKind, DeviceRule, FilterProgram, MKNOD, READ, WRITE};
use cwasi_sys::device_filter::DeviceFilter;

use super::BuilderError;
use super::causes::DevicesCause;

const ALL: u32 = READ | WRITE | MKNOD;

/// Character devices that every container may use, as with runc; `None` = any minor number.
const ALWAYS: [(u32, Option<u32>); 8] = [
    (1, Some(3)), // null
    (1, Some(5)), // zero
    (1, Some(7)), // full
    (1, Some(8)), // random
    (1, Some(9)), // urandom
    (5, Some(0)), // tty
    (5, Some(2)), // ptmx
    (136, None),  // pts
];

/// The filter of a container; `None` with cgroup v1, which libcgroups knows.
///
/// # Errors
/// When a rule makes no sense or the kernel refuses the program.
pub fn filter(spec: &Spec) -> Result<Option<DeviceFilter>, BuilderError> {
    if !matches!(get_cgroup_setup(), Ok(CgroupSetup::Unified)) {
        return Ok(None);
    }
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let given = resources.and_then(|resources| resources.devices().as_deref());
    let program = program(given.unwrap_or_default())?;
    let loaded = DeviceFilter::load(program.bytes());
    loaded.map(Some).map_err(|source| BuilderError::Devices {
        operation: "the device rules cannot be loaded into the kernel",
        source: source.into(),
    })
}

/// Puts it in force for the container's cgroup.
///
/// # Errors
/// When the kernel refuses.
pub fn attach(filter: &DeviceFilter, cgroup: &Path) -> Result<(), BuilderError> {
    let below = cgroup.strip_prefix("/").unwrap_or(cgroup);
    let directory = Path::new(DEFAULT_CGROUP_ROOT).join(below);
    filter.attach(&directory).map_err(|source| BuilderError::Devices {
        operation: "the device rules cannot be put in force",
        source: source.into(),
    })
}

fn program(given: &[LinuxDeviceCgroup]) -> Result<FilterProgram, BuilderError> {
    let mut default = false;
    let mut rules = Vec::new();
    for rule in given {
        let kind = match rule.typ().unwrap_or_default() {
            // About everything: what was said before is void.
            LinuxDeviceType::A => {
                default = rule.allow();
                rules.clear();
                continue;
            }
            LinuxDeviceType::B => DeviceKind::Block,
            LinuxDeviceType::C | LinuxDeviceType::U => DeviceKind::Char,
            LinuxDeviceType::P => return Err(invalid(rule, "a device rule cannot name a pipe")),
        };
        // -1 is another way to write "any".
        let number = |number: Option<i64>| match number {
            None | Some(-1) => Ok(None),
            Some(given) => u32::try_from(given).map(Some),
        };
        let numbers = number(rule.major()).and_then(|major| Ok((major, number(rule.minor())?)));
        let (major, minor) = numbers.map_err(|_| invalid(rule, "no device has this number"))?;
        let access = access(rule)?;
        rules.push(DeviceRule { allow: rule.allow(), kind, major, minor, access });
    }
    // A node can be made of any device: opening it is what is forbidden.
    rules
        .extend([DeviceKind::Block, DeviceKind::Char].map(|kind| allowed(kind, None, None, MKNOD)));
    rules.extend(ALWAYS.map(|(major, minor)| allowed(DeviceKind::Char, Some(major), minor, ALL)));
    Ok(FilterProgram::new(default, &rules))
}

const fn allowed(
    kind: DeviceKind,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
) -> DeviceRule {
    DeviceRule { allow: true, kind, major, minor, access }
}

fn access(rule: &LinuxDeviceCgroup) -> Result<u32, BuilderError> {
    let letters = rule.access().as_deref().unwrap_or_default();
    letters.chars().try_fold(0, |all, letter| match letter {
        'r' => Ok(all | READ),
        'w' => Ok(all | WRITE),
        'm' => Ok(all | MKNOD),
        _ => Err(invalid(rule, "its access is made of r, w and m")),
    })
}

fn invalid(rule: &LinuxDeviceCgroup, problem: &'static str) -> BuilderError {
    BuilderError::Devices {
        operation: "a device rule of the container cannot be enforced",
        source: DevicesCause::Rule { rule: rule.to_string(), problem },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause_chain::cause_chain;

    fn rules(json: &str) -> Vec<LinuxDeviceCgroup> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_rule_about_everything_voids_those_before_it() {
        let deny = r#"{"allow":false,"access":"rwm"}"#;
        let fuse = r#"{"allow":true,"type":"c","major":10,"minor":229,"access":"rw"}"#;
        let only_deny = program(&rules(&format!("[{deny}]"))).unwrap();
        assert_eq!(program(&rules(&format!("[{fuse},{deny}]"))).unwrap(), only_deny);
        assert_eq!(program(&[]).unwrap(), only_deny, "nothing is allowed that is not named");
        assert_ne!(program(&rules(&format!("[{deny},{fuse}]"))).unwrap(), only_deny);
    }

    #[test]
    fn invalid_rules_are_refused_by_name() {
        for (rule, says) in [
            (r#"[{"allow":true,"type":"c","major":1,"access":"x"}]"#, "r, w and m"),
            (r#"[{"allow":true,"type":"c","major":-7,"access":"r"}]"#, "number"),
            (r#"[{"allow":true,"type":"p","access":"r"}]"#, "pipe"),
        ] {
            let error = program(&rules(rule)).unwrap_err();
            let text = cause_chain(&error);
            assert!(text.contains(says), "{text}");
        }
    }
}
