//! The spec that libcontainer gets: the bundle's, checked, with the gaps closed in which libcontainer does
//! other than runc.
//!
//! - Without `HOME` it asks glibc for the user's home *inside the container*, and glibc then loads whatever
//!   libraries the image's `nsswitch.conf` names, into a process of ours. So `HOME` is always there;
//!   [`HOME_OF_USER`] stands for "look it up", which the executor does without glibc.
//! - Capability sets that are not named (containerd writes `{}` for "drop all") stay as they are. So all
//!   sets are named.
//! - A relative root path is taken from the bundle.
//! - Without `cgroupsPath` it names the cgroup by the container's id.
//!
//! And one thing is added: a view of the image's files for guests that can open files ([`FILES_DIR`]).
//! - Mounts: [`function_mounts`], [`mount_sources`](super::mount_sources), [`propagation`], [`cgroup_mounts`].

use std::path::{Path, PathBuf};

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    Capabilities, Hooks, LinuxNamespace, LinuxNamespaceType, LinuxResources, Mount, MountBuilder,
    PosixRlimitBuilder, PosixRlimitType, Process, Spec,
};
use libcontainer::utils::get_cgroup_path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use cwasi_sys::device_filter::DeviceFilter;
use cwasi_sys::resolved_path::{Links, ResolvedPath};
use cwasi_wire::control::{COPIES_DIR, CreateSpec, FILES_DIR, Files, VerbRequest, Workload};

use super::mount_sources::MountSources;
use super::{
    BuilderError, cgroup_mounts, devices, function_devices, function_mounts, lsm, noexec,
    propagation, refused, root_folders, systemd,
};

/// Name of a specification in its bundle.
const CONFIG: &str = "config.json";
/// Where a container's devices are.
const DEVICES: &str = "/dev";
/// Descriptors of a process as containerd's default specification has them.
const DEFAULT_DESCRIPTORS: u64 = 1024;
/// Descriptors of a function's process instead.
const FUNCTION_DESCRIPTORS: u64 = 65_536;
/// Value of `HOME` that the executor replaces by the user's home directory.
pub const HOME_OF_USER: &str = "cwasi:home-of-user";

/// What is done for a container beside what libcontainer does for its spec.
#[derive(Debug)]
pub struct Extras {
    hooks: Option<Hooks>,
    forbids_exec: bool,
    has_devices: bool,
    pids_limit: Option<i64>,
    process: Option<Process>,
    makes_network: bool,
    devices: Option<DeviceFilter>,
    resources: Option<LinuxResources>,
}

impl Extras {
    /// Programs that run around the container's life.
    #[must_use]
    pub const fn hooks(&self) -> Option<&Hooks> {
        self.hooks.as_ref()
    }

    /// True when the function's guests see devices.
    #[must_use]
    pub const fn has_devices(&self) -> bool {
        self.has_devices
    }

    /// Largest number of processes in the container.
    #[must_use]
    pub const fn pids_limit(&self) -> Option<i64> {
        self.pids_limit
    }

    /// True when no mount of a function needs to run a program.
    #[must_use]
    pub const fn forbids_exec(&self) -> bool {
        self.forbids_exec
    }

    /// True when its init gets a terminal.
    #[must_use]
    pub fn has_terminal(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.terminal() == Some(true))
    }

    #[must_use]
    pub const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// True when the container gets a new network namespace.
    #[must_use]
    pub const fn makes_network(&self) -> bool {
        self.makes_network
    }

    /// To be put in force when the container's cgroup is there.
    #[must_use]
    pub const fn devices(&self) -> Option<&DeviceFilter> {
        self.devices.as_ref()
    }

    /// Limits of a scope, to be written into its files when it is there; `None` without systemd.
    #[must_use]
    pub const fn scope_limits(&self) -> Option<&LinuxResources> {
        self.resources.as_ref()
    }
}

/// Where builders of a container have their files: consoles, and what libcontainer reads for an exec.
pub fn files_of(request: &VerbRequest) -> PathBuf {
    request.root.join(COPIES_DIR).join(&request.container)
}

/// Removes the files of builders that were killed before they could.
pub fn forget(request: &VerbRequest) {
    let directory = files_of(request);
    let _left = std::fs::remove_dir_all(directory);
}

/// Where the shim has read the spec.
fn unreadable(create: &CreateSpec, source: OciSpecError) -> BuilderError {
    BuilderError::Spec { path: create.bundle.join(CONFIG), source }
}

/// The spec as the shim sent it.
///
/// # Errors
/// When it is none, of which the shim knows before.
pub fn parse(create: &CreateSpec) -> Result<Spec, BuilderError> {
    serde_json::from_str(&create.specification).map_err(|error| unreadable(create, error.into()))
}

/// Checks the spec; returns libcontainer's.
///
/// # Errors
/// What is refused, what the mounts need and do not find.
pub fn prepare(request: &VerbRequest, create: &CreateSpec) -> Result<(Extras, Spec), BuilderError> {
    let bundle = &create.bundle;
    let mut spec = parse(create)?;
    refused::check(&spec)?;
    lsm::drop_empty(&mut spec);
    find_root(&mut spec, bundle)?;
    if let Some(process) = spec.process() {
        spec.set_process(Some(complete(process.clone())));
    }
    if let Workload::Function(_) = &create.workload {
        function_mounts::apply(&mut spec);
        raise_descriptors(&mut spec);
    }
    let mut sources = MountSources::resolve(&mut spec)?;
    if let Some(root) = spec.root().as_ref().map(|root| root.path().clone()) {
        check_devices(&root)?;
        root_folders::make_working_directory(&spec, &root)?;
    }
    let mut has_devices = false;
    if let Workload::Function(launch) = &create.workload
        && let Some(files) = &launch.files
    {
        has_devices = mount_files(&mut spec, files, &mut sources)?;
    }
    // Before the cgroups' bind mounts, whose sources libcontainer makes later.
    propagation::apply(&mut spec, &sources, &request.root)?;
    cgroup_mounts::apply(&mut spec).map_err(|error| unreadable(create, error))?;
    name_cgroup(&mut spec, &request.container);
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().clone());
    let extras = Extras {
        devices: devices::filter(&spec)?,
        hooks: spec.hooks().clone(),
        forbids_exec: noexec::is_possible(&spec),
        has_devices,
        pids_limit: resources.and_then(|resources| Some(resources.pids().as_ref()?.limit())),
        process: spec.process().clone(),
        makes_network: makes_network(&spec),
        resources: if create.systemd_cgroup { limits_aside(&mut spec) } else { None },
    };
    Ok((extras, spec))
}

/// Makes the root's path an absolute one, without links.
pub fn find_root(spec: &mut Spec, bundle: &Path) -> Result<(), BuilderError> {
    let path = spec.root().as_ref().map(|root| root.path().clone()).unwrap_or_default();
    spec.canonicalize_rootfs(bundle).map_err(|source| BuilderError::Root { path, source })
}

/// Names the cgroup that libcontainer would choose by the container's id: the shim expects it by the name of the state's
/// directory.
fn name_cgroup(spec: &mut Spec, key: &str) {
    let Some(mut linux) = spec.linux().clone() else { return };
    linux.set_cgroups_path(Some(get_cgroup_path(linux.cgroups_path(), key)));
    spec.set_linux(Some(linux));
}

/// True for a network namespace of the container's own, not one that it joins.
fn makes_network(spec: &Spec) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref());
    let is_new =
        |one: &LinuxNamespace| one.typ() == LinuxNamespaceType::Network && one.path().is_none();
    namespaces.unwrap_or_default().iter().any(is_new)
}

/// Raises the limit of descriptors of a function that has containerd's default. The kernel compares the descriptors
/// that are on their way for all of a user's processes with it, so at 1,024 a few functions with unread answers keep
/// all others from sending segments. Any other limit stays.
fn raise_descriptors(spec: &mut Spec) {
    let Some(process) = spec.process_mut() else { return };
    let Some(mut limits) = process.rlimits().clone() else { return };
    let hard = || getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_soft, hard)| hard);
    if hard() < FUNCTION_DESCRIPTORS {
        // The container's first process inherits the builder's limit. Without privileges it stays as it is.
        let _unprivileged =
            setrlimit(Resource::RLIMIT_NOFILE, FUNCTION_DESCRIPTORS, FUNCTION_DESCRIPTORS);
    }
    let raised = FUNCTION_DESCRIPTORS.min(hard());
    for limit in limits.iter_mut().filter(|limit| limit.typ() == PosixRlimitType::RlimitNofile) {
        if (limit.soft(), limit.hard()) == (DEFAULT_DESCRIPTORS, DEFAULT_DESCRIPTORS)
            && raised > DEFAULT_DESCRIPTORS
        {
            let builder = PosixRlimitBuilder::default().typ(PosixRlimitType::RlimitNofile);
            // All fields are there.
            *limit = builder.soft(raised).hard(raised).build().unwrap_or(*limit);
        }
    }
    process.set_rlimits(Some(limits));
}

/// Leaves the limits in the spec that libcontainer can hand to systemd; returns all of them.
fn limits_aside(spec: &mut Spec) -> Option<LinuxResources> {
    let mut linux = spec.linux().clone()?;
    let resources = linux.resources().clone().unwrap_or_default();
    linux.set_resources(Some(systemd::for_systemd(resources.clone())));
    spec.set_linux(Some(linux));
    Some(resources)
}

/// libcontainer follows a link at `/dev` before it enters the container's root, so on the host.
fn check_devices(root: &Path) -> Result<(), BuilderError> {
    let is_link = root.join("dev").symlink_metadata().is_ok_and(|it| it.is_symlink());
    if is_link { Err(BuilderError::DeviceLink) } else { Ok(()) }
}

/// Mounts the image's files once more, read-only and without what is mounted in them, and the guest's mounts there.
/// There are none where `/dev` is no tmpfs: a directory would be made in the image, or on the host. Returns true when
/// the guest sees devices.
fn mount_files(
    spec: &mut Spec,
    files: &Files,
    sources: &mut MountSources,
) -> Result<bool, BuilderError> {
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let Some(root) = spec.root().as_ref().map(|root| root.path().clone()) else {
        return Ok(false);
    };
    let dev = mounts.iter().rfind(|mount| mount.destination() == Path::new(DEVICES));
    if dev.is_none_or(|mount| mount.typ().as_deref() != Some("tmpfs")) {
        return Ok(false);
    }
    let target =
        |inside: &Path| Path::new(FILES_DIR).join(inside.strip_prefix("/").unwrap_or(inside));
    // A tmpfs is not mounted again, and so no mount in it. The guest opens a tmpfs itself. It has a `/dev` of its own.
    let is_in_tmpfs = |path: &Path| {
        mounts.iter().any(|mount| {
            mount.typ().as_deref() == Some("tmpfs")
                && path.starts_with(mount.destination())
                && mount.destination() != Path::new(DEVICES)
        })
    };
    let again: Vec<Mount> = mounts
        .iter()
        .filter(|mount| files.mounts.contains(mount.destination()))
        .filter(|mount| !is_in_tmpfs(mount.destination()))
        .cloned()
        .map(|mut mount| {
            mount.set_destination(target(mount.destination()));
            mount
        })
        .collect();
    let options = ["bind", "ro", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
    let failed =
        |source| BuilderError::MountSource { target: "/".into(), source: Box::new(source) };
    let image = sources.add(ResolvedPath::open(&root, Links::Follow).map_err(failed)?);
    let mount = MountBuilder::default().destination(FILES_DIR).typ("bind").source(image);
    let unreadable = |source| BuilderError::Spec { path: root.clone(), source };
    mounts.push(mount.options(options).build().map_err(unreadable)?);
    mounts.push(function_devices::mount().map_err(unreadable)?);
    mounts.extend(again);
    spec.set_mounts(Some(mounts));
    function_devices::add(spec).map_err(unreadable)?;
    Ok(true)
}

/// Names what would otherwise be guessed.
pub fn complete(mut process: Process) -> Process {
    let mut env = process.env().clone().unwrap_or_default();
    let has_home =
        env.iter().filter_map(|entry| entry.strip_prefix("HOME=")).any(|home| !home.is_empty());
    if !has_home {
        env.push(format!("HOME={HOME_OF_USER}"));
    }
    process.set_env(Some(env));
    // Said or not: libcontainer installs the seccomp profile where it is not said.
    if process.no_new_privileges() == Some(false) {
        process.set_no_new_privileges(None);
    }
    let named = process.capabilities().clone().unwrap_or_default();
    let given = |set: &Option<Capabilities>| {
        let set = process.capabilities().as_ref().and(set.as_ref());
        Some(set.cloned().unwrap_or_default())
    };
    let mut all = named.clone();
    all.set_bounding(given(named.bounding()))
        .set_effective(given(named.effective()))
        .set_permitted(given(named.permitted()))
        .set_inheritable(given(named.inheritable()))
        .set_ambient(given(named.ambient()));
    process.set_capabilities(Some(all));
    process
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(capabilities: &str, env: &str) -> Process {
        complete(
            serde_json::from_str(&format!(
                r#"{{"cwd":"/","user":{{"uid":0,"gid":0}},"args":["x"]{capabilities}{env}}}"#
            ))
            .unwrap(),
        )
    }

    #[test]
    fn every_capability_set_is_named() {
        for given in ["", r#","capabilities":{}"#] {
            let process = completed(given, "");
            let sets = process.capabilities().clone().unwrap();
            for set in [sets.bounding(), sets.effective(), sets.permitted(), sets.ambient()] {
                assert_eq!(set.as_ref().map(|set| set.len()), Some(0), "{given}");
            }
        }
        let process = completed(r#","capabilities":{"bounding":["CAP_KILL"]}"#, "");
        let sets = process.capabilities().clone().unwrap();
        assert_eq!(sets.bounding().as_ref().map(|set| set.len()), Some(1));
        assert_eq!(sets.inheritable().as_ref().map(|set| set.len()), Some(0));
    }

    #[test]
    fn home_is_always_there() {
        let marked = format!("HOME={HOME_OF_USER}");
        assert_eq!(completed("", "").env().as_ref().unwrap(), std::slice::from_ref(&marked));
        let empty = completed("", r#","env":["HOME="]"#);
        assert_eq!(empty.env().clone().unwrap(), ["HOME=".to_owned(), marked]);
        let given = completed("", r#","env":["HOME=/h"]"#);
        assert_eq!(given.env().clone().unwrap(), ["HOME=/h"]);
    }
}
