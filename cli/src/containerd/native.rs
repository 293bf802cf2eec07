//! The OCI configuration of a service's container: a native program, with what `ctr run` gives one.

use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Capability, LinuxCapabilitiesBuilder, Mount, MountBuilder, ProcessBuilder,
    RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use super::oci::{HOST_NAMES, Network, bind, environment, linux, system_mounts};
use cwasi_workflow::Mount as WorkflowMount;
use cwasi_workflow::services::User;

/// What a service's container needs.
#[derive(Debug)]
pub struct NativeSpec<'a> {
    pub cgroup: &'a str,
    /// Program and arguments.
    pub args: Vec<String>,
    pub image_env: Vec<String>,
    /// Environment beside the image's.
    pub env: &'a [(String, String)],
    pub working_dir: PathBuf,
    pub user: User,
    pub network: Network<'a>,
    pub storage: Option<&'a WorkflowMount>,
}

/// The configuration.
///
/// # Errors
/// None that a user can cause.
pub fn spec(native: &NativeSpec<'_>) -> Result<Spec, OciSpecError> {
    let capabilities: Capabilities = capabilities();
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(capabilities.clone())
        .effective(capabilities.clone())
        .permitted(capabilities)
        .build()?;
    let user = UserBuilder::default().uid(native.user.uid).gid(native.user.gid).build()?;
    let process = ProcessBuilder::default()
        .args(native.args.clone())
        .env(environment(&native.image_env, native.env))
        .cwd(native.working_dir.clone())
        .user(user)
        .capabilities(capabilities)
        .no_new_privileges(true)
        .build()?;
    let mut mounts = system_mounts()?;
    // Not before /dev, which they are in.
    mounts.extend(devices()?);
    let names: &[&str] = match native.network {
        Network::Host => &HOST_NAMES,
        // So that `localhost` has an address.
        Network::Own | Network::At(_) => &HOST_NAMES[..1],
    };
    for file in names.iter().map(Path::new).filter(|file| file.exists()) {
        let target = file.display().to_string();
        mounts.push(bind(&WorkflowMount { source: file.into(), target, read_only: true })?);
    }
    if let Some(storage) = native.storage {
        mounts.push(bind(storage)?);
    }
    SpecBuilder::default()
        .version("1.0.2")
        .process(process)
        .root(RootBuilder::default().path("rootfs").readonly(false).build()?)
        .mounts(mounts)
        .linux(linux(native.cgroup, native.network)?)
        .build()
}

/// Those of containers in containerd, Docker and Kubernetes by default. Images of databases need them: they begin as
/// root, and then change their user.
fn capabilities() -> Capabilities {
    use Capability as Of;
    let all = [
        Of::Chown,
        Of::DacOverride,
        Of::Fsetid,
        Of::Fowner,
        Of::Mknod,
        Of::NetRaw,
        Of::Setgid,
        Of::Setuid,
        Of::Setfcap,
        Of::Setpcap,
        Of::NetBindService,
        Of::SysChroot,
        Of::Kill,
        Of::AuditWrite,
    ];
    all.into_iter().collect()
}

fn devices() -> Result<[Mount; 2], OciSpecError> {
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| {
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        MountBuilder::default()
            .destination(target)
            .typ(kind)
            .source(source)
            .options(options)
            .build()
    };
    let terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    Ok([
        mount("/dev/pts", "devpts", "devpts", &terminals)?,
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
    ])
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxNamespaceType;

    use super::*;

    fn spec_in(network: Network<'_>) -> Spec {
        let storage =
            WorkflowMount { source: "/s".into(), target: "/data".into(), read_only: false };
        let native = NativeSpec {
            cgroup: "/n/w.db",
            args: vec!["db".to_owned(), "--serve".to_owned()],
            image_env: vec!["PATH=/bin".to_owned(), "A=image".to_owned()],
            env: &[("A".to_owned(), "own".to_owned())],
            working_dir: "/data".into(),
            user: User { uid: 999, gid: 998 },
            network,
            storage: Some(&storage),
        };
        spec(&native).unwrap()
    }

    #[test]
    fn a_service_has_its_user_the_default_rights_and_its_storage() {
        let spec = spec_in(Network::Own);
        let process = spec.process().as_ref().unwrap();
        assert_eq!((process.user().uid(), process.user().gid()), (999, 998));
        assert_eq!(process.env().as_deref().unwrap(), ["PATH=/bin", "A=own"]);
        assert_eq!(process.no_new_privileges(), Some(true));
        let bounding = process.capabilities().as_ref().unwrap().bounding().clone().unwrap();
        assert_eq!(bounding.len(), 14);
        assert!(
            bounding.contains(&Capability::Setuid) && !bounding.contains(&Capability::SysAdmin)
        );
        let mounts = spec.mounts().as_deref().unwrap();
        let storage = mounts.last().unwrap();
        assert_eq!(storage.destination(), Path::new("/data"));
        assert_eq!(storage.source().as_deref(), Some(Path::new("/s")));
    }

    #[test]
    fn a_network_is_the_hosts_its_own_or_anothers() {
        let network = |network| {
            let spec = spec_in(network);
            let namespaces = spec.linux().as_ref().unwrap().namespaces().clone().unwrap();
            let found = namespaces.iter().find(|it| it.typ() == LinuxNamespaceType::Network);
            found.map(|it| it.path().clone())
        };
        assert_eq!(network(Network::Host), None);
        assert_eq!(network(Network::Own), Some(None));
        let path = Path::new("/proc/7/ns/net");
        assert_eq!(network(Network::At(path)), Some(Some(path.to_owned())));
    }
}
