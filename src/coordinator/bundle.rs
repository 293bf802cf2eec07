//! Reads a function's settings from its bundle's OCI configuration. Runs in the shim daemon.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{Mount, Spec};

use super::error::PlanError;
use cwasi_config::annotations::{AnnotationError, FunctionSpec};
use cwasi_wire::control::Files;
use cwasi_wire::egress::{Egress, EgressEntry as Destination, HOSTS_FILE, RESOLVER_FILE};

/// The kernel's period of a processor quota, in microseconds, where the specification names none.
const CPU_PERIOD_US: u64 = 100_000;
const DEVICES: &str = "/dev";
const SHARED_MEMORY: &str = "/dev/shm";

/// A bundle's OCI configuration.
#[derive(Debug)]
pub struct BundleSpec {
    pub spec: Spec,
    /// What `spec` was parsed from.
    pub text: String,
}

/// Reads the OCI configuration of a bundle.
///
/// # Errors
/// When the file is missing or invalid.
pub fn load_spec(bundle: &Path) -> Result<BundleSpec, PlanError> {
    let path = bundle.join("config.json");
    let load = || -> Result<BundleSpec, OciSpecError> {
        let text = fs::read_to_string(&path)?;
        Ok(BundleSpec { spec: serde_json::from_str(&text)?, text })
    };
    load().map_err(|source| PlanError::Bundle { path, source })
}

/// Parses the annotations of a container.
///
/// # Errors
/// All problems together.
pub fn function_spec(spec: &Spec) -> Result<FunctionSpec, AnnotationError> {
    let empty = HashMap::new();
    let annotations = spec.annotations().as_ref().unwrap_or(&empty);
    FunctionSpec::parse(annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

/// True for a pod's pause container.
pub(super) fn is_pause_container(spec: &Spec) -> bool {
    let annotation =
        spec.annotations().as_ref().and_then(|all| all.get("io.kubernetes.cri.container-type"));
    annotation.is_some_and(|kind| kind == "sandbox")
}

/// The command line; empty without one.
pub fn args(spec: &Spec) -> &[String] {
    spec.process().as_ref().and_then(|process| process.args().as_deref()).unwrap_or_default()
}

/// The annotated name, or else the module's file name.
pub fn function_name(annotations: &FunctionSpec, command: &str) -> Result<String, PlanError> {
    if let Some(name) = &annotations.function {
        return Ok(name.clone());
    }
    let file = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command);
    let name = file.strip_suffix(".wasm").unwrap_or(file);
    cwasi_config::function_name(name)
        .map_err(|problem| PlanError::Name { name: name.to_owned(), problem })
}

/// What names a function that has no annotation: its command, or its image where the command is `/`, as in the pods of
/// SpinKube. Such an image consists of its module.
#[must_use]
pub fn named_by<'a>(command: &'a str, image: &'a str) -> &'a str {
    if !names_nothing(command) {
        return command;
    }
    let name = image.split_once('@').map_or(image, |(name, _digest)| name);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map_or(last, |(name, _tag)| name)
}

/// True for the command `/`, which is no file of any image.
#[must_use]
pub(super) fn names_nothing(command: &str) -> bool {
    command == "/"
}

/// The container's memory limit in bytes; `None` without one.
pub fn memory_limit(spec: &Spec) -> Option<u64> {
    let resources = spec.linux().as_ref()?.resources().as_ref()?;
    let limit = u64::try_from(resources.memory().as_ref()?.limit()?).ok()?;
    (limit > 0).then_some(limit)
}

/// Thousandths of a processor that the container may use in each period; `None` when it may use all.
pub fn cpu_milli(spec: &Spec) -> Option<u64> {
    let cpu = spec.linux().as_ref()?.resources().as_ref()?.cpu().as_ref()?;
    let quota = u64::try_from(cpu.quota()?).ok().filter(|quota| *quota > 0)?;
    Some((quota.saturating_mul(1000) / cpu.period().unwrap_or(CPU_PERIOD_US).max(1)).max(1))
}

/// The function's network rules. Name look-ups read `/etc/hosts` and `/etc/resolv.conf` only if these are mounts,
/// never the image's own files.
pub fn egress(spec: &Spec, entries: Vec<Destination>) -> Option<Egress> {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    // The file itself or a directory that it is in.
    let is_mounted =
        |path: &str| mounts.iter().any(|mount| Path::new(path).starts_with(mount.destination()));
    let (trusts_hosts, trusts_resolver) = (is_mounted(HOSTS_FILE), is_mounted(RESOLVER_FILE));
    (!entries.is_empty()).then_some(Egress { entries, trusts_hosts, trusts_resolver })
}

/// Mounts that the guest may open: the operator's, without the runtime's own (`/proc`, `/dev`, …). In `/dev` these are
/// files and folders of the host, such as Kubernetes' `/dev/termination-log`, but not the pod's shared memory.
fn guest_mounts(spec: &Spec) -> impl Iterator<Item = &Mount> {
    let plumbing = |mount: &Mount| {
        let at = mount.destination();
        ["/proc", "/sys"].iter().any(|top| at.starts_with(top))
            || (at.starts_with(DEVICES) && (at == Path::new(SHARED_MEMORY) || !is_bind(mount)))
            || (at == Path::new("/run") && is_tmpfs(mount))
    };
    spec.mounts().as_deref().unwrap_or_default().iter().filter(move |mount| !plumbing(mount))
}

fn is_bind(mount: &Mount) -> bool {
    let options = mount.options().as_deref().unwrap_or_default();
    mount.typ().as_deref() == Some("bind") || options.iter().any(|it| it == "bind" || it == "rbind")
}

fn is_tmpfs(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("tmpfs")
}

pub fn preopens(spec: &Spec) -> Vec<PathBuf> {
    let is_dir = |mount: &&Mount| {
        is_tmpfs(mount) || mount.source().as_ref().is_some_and(|source| source.is_dir())
    };
    guest_mounts(spec).filter(is_dir).map(|mount| mount.destination().clone()).collect()
}

/// Single files and tmpfs mounts. A tmpfs cannot be mounted a second time: the copy would be empty.
pub fn files(spec: &Spec) -> Files {
    let cwd = spec.process().as_ref().map_or_else(|| "/".into(), |process| process.cwd().clone());
    let shown = guest_mounts(spec).filter(|mount| !is_tmpfs(mount));
    Files { cwd, mounts: shown.map(|mount| mount.destination().clone()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_see_files_that_are_mounted_among_the_devices() {
        let mounts = serde_json::json!([
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts" },
            { "destination": "/dev/shm", "type": "bind", "source": "/tmp", "options": ["rbind"] },
            { "destination": "/dev/termination-log", "source": "/log", "options": ["rbind", "rw"] },
            { "destination": "/proc/cpuinfo", "type": "bind", "source": "/info" }
        ]);
        let spec = serde_json::json!({ "ociVersion": "1.0.2", "mounts": mounts });
        let spec: Spec = serde_json::from_value(spec).unwrap();
        assert_eq!(files(&spec).mounts, [Path::new("/dev/termination-log")]);
        assert!(preopens(&spec).is_empty());
    }

    #[test]
    fn the_command_of_spinkube_has_the_images_name() {
        for (command, image, name) in [
            ("/", "registry:5000/team/greeter:1", "greeter"),
            ("/", "ghcr.io/team/greeter@sha256:aa", "greeter"),
            ("/", "greeter", "greeter"),
            ("/m.wasm", "registry/greeter:1", "/m.wasm"),
        ] {
            assert_eq!(named_by(command, image), name, "{image}");
        }
    }

    #[test]
    fn names_come_from_mounted_files_only() {
        let plan = |mounts: &[&str]| {
            let mounts: Vec<_> =
                mounts.iter().map(|path| serde_json::json!({ "destination": path })).collect();
            let spec = serde_json::json!({ "ociVersion": "1.0.2", "mounts": mounts });
            let spec: Spec = serde_json::from_value(spec).unwrap();
            let egress = egress(&spec, vec!["db:80".parse().unwrap()]).unwrap();
            (egress.trusts_hosts, egress.trusts_resolver)
        };
        assert_eq!(plan(&["/proc", "/etc/hostname"]), (false, false));
        assert_eq!(plan(&["/etc/hosts"]), (true, false));
        assert_eq!(plan(&["/proc", "/etc/resolv.conf"]), (false, true));
        assert_eq!(plan(&["/etc"]), (true, true));
        assert!(egress(&Spec::default(), Vec::new()).is_none());
    }
}
