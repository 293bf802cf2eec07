//! The OCI configuration of a function's container: what `ctr run` gives a container, with the workflow's fields.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxDeviceCgroupBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
    LinuxResourcesBuilder, Mount, MountBuilder, ProcessBuilder, RootBuilder, Spec, SpecBuilder,
    UserBuilder, get_default_maskedpaths, get_default_readonly_paths,
};

use cwasi_sys::resolved_path::FileIdentity;
use cwasi_wire::mount_options::{IDENTITY, NO_LINKS};
use cwasi_workflow::Mount as WorkflowMount;

/// `PATH` of images that set none.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The host's files for names, which a function with the host's network reads.
pub(super) const HOST_NAMES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// The network of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network<'a> {
    Host,
    /// A new one, with nothing but 127.0.0.1.
    Own,
    /// That of another container: its namespace.
    At(&'a Path),
}

/// What a function's container needs.
#[derive(Clone, Debug)]
pub struct FunctionSpec<'a> {
    /// The container's cgroup; `None` = a function without a container.
    pub cgroup: Option<&'a str>,
    /// The module's path in the image.
    pub command: String,
    pub image_env: Vec<String>,
    /// The image's working directory.
    pub working_dir: PathBuf,
    /// Arguments after the module's path.
    pub args: &'a [String],
    /// Environment beside the image's.
    pub env: &'a [(String, String)],
    pub network: Network<'a>,
    /// Files and folders of the host.
    pub mounts: &'a [WorkflowMount],
    pub annotations: &'a BTreeMap<String, String>,
}

/// The configuration.
///
/// # Errors
/// None that a user can cause.
pub fn spec(function: &FunctionSpec<'_>) -> Result<Spec, OciSpecError> {
    let mut args = vec![function.command.clone()];
    args.extend(function.args.iter().cloned());
    let process = ProcessBuilder::default()
        .args(args)
        .env(environment(&function.image_env, function.env))
        .cwd(function.working_dir.clone())
        .user(UserBuilder::default().uid(0u32).gid(0u32).build()?)
        .no_new_privileges(true)
        .build()?;
    let mut mounts = if function.cgroup.is_some() { system_mounts()? } else { Vec::new() };
    if function.network == Network::Host && function.cgroup.is_some() {
        // Names are looked up as on the host, unless the function has files of its own there.
        let is_own = |file: &Path| function.mounts.iter().any(|own| file.starts_with(&own.target));
        let files = HOST_NAMES.map(Path::new).into_iter();
        for file in files.filter(|file| file.exists() && !is_own(file)) {
            let target = file.display().to_string();
            mounts.push(bind(&WorkflowMount { source: file.into(), target, read_only: true })?);
        }
    }
    // The runtime mounts in this order, and an inner mount comes after the one around it, as in a pod.
    let mut own: Vec<_> = function.mounts.iter().collect();
    own.sort_by_key(|mount| Path::new(&mount.target).components().count());
    for mount in own {
        // A function with a writable mount could lead the next start elsewhere by a link.
        mounts.push(with_option(bind(mount)?, NO_LINKS.to_owned()));
    }
    let annotations: HashMap<String, String> =
        function.annotations.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let root = RootBuilder::default().path("rootfs").readonly(false).build()?;
    let spec = SpecBuilder::default()
        .version("1.0.2")
        .process(process)
        .root(root)
        .mounts(mounts)
        .annotations(annotations);
    match function.cgroup {
        Some(cgroup) => spec.linux(linux(cgroup, function.network)?).build(),
        None => spec.linux(LinuxBuilder::default().build()?).build(),
    }
}

/// The environment of an image, with further variables that win.
pub(super) fn environment(of_image: &[String], further: &[(String, String)]) -> Vec<String> {
    let mut env = of_image.to_vec();
    if !env.iter().any(|entry| entry.starts_with("PATH=")) {
        env.insert(0, PATH.to_owned());
    }
    for (key, value) in further {
        env.retain(|entry| !entry.starts_with(&format!("{key}=")));
        env.push(format!("{key}={value}"));
    }
    env
}

/// Namespaces, cgroup and hidden paths of a container.
pub(super) fn linux(
    cgroup: &str,
    network: Network<'_>,
) -> Result<oci_spec::runtime::Linux, OciSpecError> {
    use LinuxNamespaceType::{Ipc, Mount, Pid, Uts};
    let mut namespaces = Vec::new();
    for kind in [Pid, Ipc, Uts, Mount] {
        namespaces.push(LinuxNamespaceBuilder::default().typ(kind).build()?);
    }
    let own = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::Network);
    match network {
        Network::Host => {}
        Network::Own => namespaces.push(own.build()?),
        Network::At(path) => namespaces.push(own.path(path).build()?),
    }
    let no_devices = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
    LinuxBuilder::default()
        .namespaces(namespaces)
        .cgroups_path(cgroup)
        .resources(LinuxResourcesBuilder::default().devices([no_devices]).build()?)
        .masked_paths(get_default_maskedpaths())
        .readonly_paths(get_default_readonly_paths())
        .build()
}

/// What every container has mounted.
pub(super) fn system_mounts() -> Result<Vec<Mount>, OciSpecError> {
    let safe = ["nosuid", "noexec", "nodev"];
    let rows: [(&str, &str, &str, &[&str]); 5] = [
        ("/proc", "proc", "proc", &safe),
        ("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        ("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ("/run", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ];
    let mut mounts = Vec::new();
    for (target, kind, source, options) in rows {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        mounts.push(
            MountBuilder::default()
                .destination(target)
                .typ(kind)
                .source(source)
                .options(options)
                .build()?,
        );
    }
    Ok(mounts)
}

/// A file or folder of the host.
pub(super) fn bind(mount: &WorkflowMount) -> Result<Mount, OciSpecError> {
    let access = if mount.read_only { "ro" } else { "rw" };
    // containerd's working directory is not the user's.
    let source = std::path::absolute(&mount.source).unwrap_or_else(|_| mount.source.clone());
    MountBuilder::default()
        .destination(Path::new(&mount.target))
        .typ("bind")
        .source(source)
        .options(["rbind".to_owned(), access.to_owned()])
        .build()
}

fn with_option(mut mount: Mount, option: String) -> Mount {
    let mut options = mount.options().clone().unwrap_or_default();
    options.push(option);
    mount.set_options(Some(options));
    mount
}

/// Binds the mount at `target` to the file that its source is now: the builder refuses another one.
pub fn pin(spec: &mut Spec, target: &str, identity: FileIdentity) {
    let mounts = spec.mounts().clone().unwrap_or_default();
    let pinned = mounts.into_iter().map(|mount| {
        if mount.destination() == Path::new(target) {
            with_option(mount, format!("{IDENTITY}{identity}"))
        } else {
            mount
        }
    });
    let pinned = pinned.collect();
    spec.set_mounts(Some(pinned));
}
