//! SELinux labels and AppArmor profiles. Runs in the builder, in native containers until their exec, and in sandbox
//! init.
//!
//! libcontainer ignores `process.selinuxLabel`, and applies a profile at the next exec. A function never execs, so
//! its init takes both at once.

use std::io::{self, Write as _};
use std::path::Path;

use libcontainer::oci_spec::runtime::Spec;
use pathrs::flags::OpenFlags;
use pathrs::procfs::{ProcfsBase, ProcfsHandle};

use super::BuilderError;

/// The field of a process's label.
pub const PROCESS_LABEL: &str = "process.selinuxLabel";
/// There when SELinux is.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// A process cannot get its label or its profile.
#[derive(Debug, thiserror::Error)]
#[error("{field} {value:?} cannot be taken: {source}; {remedy}")]
pub struct LsmError {
    field: &'static str,
    value: String,
    #[source]
    source: io::Error,
    remedy: &'static str,
}

/// Takes an empty label of mounts away, which stands for none: libcontainer would mount with it.
pub fn drop_empty(spec: &mut Spec) {
    let Some(mut linux) = spec.linux().clone() else { return };
    if linux.mount_label().as_deref() == Some("") {
        linux.set_mount_label(None);
        spec.set_linux(Some(linux));
    }
}

/// Refuses a label where SELinux is off, as runc does.
///
/// # Errors
/// When there is one that nothing would enforce.
pub fn check_label(field: &'static str, label: Option<&str>) -> Result<(), BuilderError> {
    match label.filter(|label| !label.is_empty() && !Path::new(SELINUX).exists()) {
        Some(label) => Err(BuilderError::NoSelinux { field, label: label.to_owned() }),
        None => Ok(()),
    }
}

/// Has this process take its label at its exec.
///
/// # Errors
/// When the policy does not know it.
pub fn label_exec(spec: &Spec) -> Result<(), LsmError> {
    let label = spec.process().as_ref().and_then(|process| named(process.selinux_label()));
    let remedy = "the policy of this node has to have the label";
    label.map_or(Ok(()), |label| set(PROCESS_LABEL, label, ("attr/exec", label), remedy))
}

/// Has this process, which never execs, take its label and its profile now.
///
/// # Errors
/// When the policy does not allow it.
pub fn enter(spec: &Spec) -> Result<(), LsmError> {
    let Some(process) = spec.process() else { return Ok(()) };
    if let Some(label) = named(process.selinux_label()) {
        let remedy = "a function's process takes it without an exec, which the policy has to allow (dyntransition); or leave \
                      the label out";
        set(PROCESS_LABEL, label, ("attr/current", label), remedy)?;
    }
    if let Some(profile) = named(process.apparmor_profile()) {
        let remedy = "the profile has to be loaded on this node; or leave it out";
        let order = format!("changeprofile {profile}");
        let field = "process.apparmorProfile";
        set(field, profile, ("attr/apparmor/current", &order), remedy)
            // Before Linux 5.8.
            .or_else(|_| set(field, profile, ("attr/current", &order), remedy))?;
    }
    Ok(())
}

fn set(
    field: &'static str,
    value: &str,
    (file, order): (&str, &str),
    remedy: &'static str,
) -> Result<(), LsmError> {
    let flags = OpenFlags::O_WRONLY | OpenFlags::O_CLOEXEC;
    let opened = ProcfsHandle::new()
        .and_then(|proc| proc.open(ProcfsBase::ProcThreadSelf, file, flags))
        .map_err(|error| match error.kind() {
            pathrs::error::ErrorKind::OsError(Some(number)) => io::Error::from_raw_os_error(number),
            _ => io::Error::other(error.to_string()),
        });
    let written = opened.and_then(|mut opened| opened.write_all(order.as_bytes()));
    written.map_err(|source| LsmError { field, value: value.to_owned(), source, remedy })
}

/// A name, or nothing: runtimes write an empty text for none.
fn named(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}
