//! From a bundle to a plan: read it once, find and check the module, compile it, say what to provision.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Mount, Spec};

use super::aot::{AotCache, AotError, CompileChild};
use super::compiled::{Compiled, compile};
use super::embedding::{EmbeddingError, discover};
use super::images::ImageStore;
use super::locate::{Found, find_module};
use super::module::{self, CheckedModule, ModuleError};
use super::progress::Progress;
use super::registry::Record;
use crate::config::annotations::{AnnotationError, FunctionSpec};
use crate::wire::control::{Entry, Files, FunctionLaunch, Isolation, Role, Workload};
use crate::wire::egress::{Egress, Entry as Destination, HOSTS_FILE, RESOLVER_FILE};
use crate::wire::ids::Identity;

/// Why a container cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The bundle.
    #[error("bundle {path} cannot be read: {source}", path = path.display())]
    Bundle {
        /// Its `config.json`.
        path: PathBuf,
        /// Why.
        #[source]
        source: oci_spec::OciSpecError,
    },
    /// Nothing to run.
    #[error("the container has no command: give the image an entrypoint or name the .wasm file")]
    NoCommand,
    /// Annotations.
    #[error(transparent)]
    Annotations(#[from] AnnotationError),
    /// Annotations on something that is no function.
    #[error(
        "{command} is no WebAssembly module, but the container has annotations for functions: {keys}"
    )]
    NotAFunction {
        /// `args[0]`.
        command: String,
        /// Which annotations.
        keys: String,
    },
    /// The module is nowhere.
    #[error("no module: {path} is not in the container's root file system, and {image}")]
    NoModule {
        /// `args[0]`.
        path: String,
        /// What the image offers.
        image: String,
    },
    /// A file could not be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The module.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// An export that is needed is not there.
    #[error("{origin} exports no function `{export}`{hint}; it exports: {exports}")]
    NoEntry {
        /// Where the module came from.
        origin: String,
        /// What was looked for.
        export: String,
        /// What to do.
        hint: &'static str,
        /// What is there.
        exports: String,
    },
    /// A command's instance cannot be used again.
    #[error(
        "{origin} is a command, whose instance ends with each request: cwasi.isolation={isolation} needs a reactor (cwasi_handle)"
    )]
    Isolation {
        /// Where the module came from.
        origin: String,
        /// What was asked for.
        isolation: Isolation,
    },
    /// A command's stdin has no place for several payloads.
    #[error(
        "{origin} is a command, which has one payload on its stdin: cwasi.fan-in needs a reactor (cwasi_handle)"
    )]
    FanIn {
        /// Where the module came from.
        origin: String,
    },
    /// Sockets without a destination.
    #[error(
        "{origin} imports socket functions ({imports}), and functions reach no network by default: allow its \
         destinations with the annotation cwasi.network=host:port,… or build it without sockets"
    )]
    Sockets {
        /// Where the module came from.
        origin: String,
        /// Which ones.
        imports: String,
    },
    /// No usable name.
    #[error(
        "function name `{name}` (from the command) {problem}: set the annotation cwasi.function"
    )]
    Name {
        /// What the command gives.
        name: String,
        /// Why it is none.
        problem: String,
    },
    /// What is to be embedded.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// Compilation.
    #[error(transparent)]
    Aot(#[from] AotError),
}

/// What the shim knows about a container before it is planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// OCI bundle directory.
    pub bundle: &'a Path,
    /// Its mounted root file system.
    pub rootfs: &'a Path,
    /// containerd namespace.
    pub namespace: &'a str,
    /// Container id.
    pub container: &'a str,
    /// Id of the shim's group.
    pub group: &'a str,
    /// Id for this instance, unique on this host.
    pub instance: &'a str,
    /// Where its receiver will listen.
    pub socket: &'a Path,
}

/// What to provision.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What runs.
    pub workload: Workload,
    /// The registry record of a secondary.
    pub record: Option<Record>,
    /// For the log: compiled now or loaded, and how long it took.
    pub note: String,
}

/// Most bytes that all workers of a function keep for segments that they lend.
const POOL_MAX: u64 = 256 << 20;
/// The part of a container's memory limit that this may be.
const POOL_SHARE: u64 = 4;

/// The function coordinator of one shim daemon.
#[derive(Clone, Debug)]
pub struct Coordinator<S, C> {
    /// Compiled modules.
    pub cache: AotCache,
    /// Images.
    pub images: S,
    /// Compiler.
    pub compiler: C,
    /// Trust groups that may span scopes.
    pub trust_groups: Vec<String>,
}

impl<S: ImageStore, C: CompileChild> Coordinator<S, C> {
    /// Plans one container. Slow when the module has to be compiled; touches nothing but the cache. Dropped, it ends the
    /// compiler.
    ///
    /// # Errors
    /// What the user has to change.
    pub async fn plan(
        &self,
        request: &PlanRequest<'_>,
        progress: &impl Progress,
    ) -> Result<Plan, PlanError> {
        let spec = load_spec(request.bundle)?;
        let annotations = function_spec(&spec)?;
        let Some(found) = find_module(&self.images, &spec, request).await? else {
            return native(&spec, &annotations);
        };
        let module = module::check(&found.bytes, &found.origin)?;
        if module.dropped_native {
            tracing::warn!(container = request.container, origin = %found.origin,
                "native code in the module's custom section `wasmedge` was dropped");
        }
        let entry = entry(&module, annotations.role, found.export.as_deref(), &found.origin)?;
        if found.export.is_none()
            && let Some(doubt) = doubt(&module, annotations.role, &found)
        {
            progress.warn(&doubt);
        }
        if annotations.isolation != Isolation::Request && entry != Entry::Reactor {
            let isolation = annotations.isolation;
            return Err(PlanError::Isolation { origin: found.origin, isolation });
        }
        if annotations.fan_in.is_some() && entry != Entry::Reactor {
            return Err(PlanError::FanIn { origin: found.origin });
        }
        if annotations.network.is_empty() && !module.sockets.is_empty() {
            let imports = module.sockets.join(", ");
            return Err(PlanError::Sockets { origin: found.origin, imports });
        }
        let name = function_name(&annotations, &found.command)?;
        let identity = Identity {
            namespace: request.namespace.to_owned(),
            pod_namespace: annotations.pod_namespace.clone(),
            function: name,
        };
        let (container, groups) = (request.container, &self.trust_groups);
        let embedding =
            discover(&self.images, &module, &annotations, &identity, container, groups).await?;
        for (function, reason) in &embedding.refused {
            tracing::warn!(container, function, reason, "not embedded, called elsewhere");
        }
        let compiled =
            compile(&self.cache, &self.compiler, module, &found.origin, embedding, progress)
                .await?;
        let note = compiled.note.clone();
        let record =
            (annotations.role == Role::Secondary).then(|| record(request, &annotations, &identity));
        let launch = launch(request, &spec, annotations, identity, entry, compiled);
        Ok(Plan { workload: Workload::Function(Box::new(launch)), record, note })
    }
}

/// The OCI configuration of a bundle.
///
/// # Errors
/// When there is none or it cannot be read.
pub fn load_spec(bundle: &Path) -> Result<Spec, PlanError> {
    let path = bundle.join("config.json");
    Spec::load(&path).map_err(|source| PlanError::Bundle { path, source })
}

/// What a bundle's annotations say; also the launcher's source for the group.
///
/// # Errors
/// All problems together.
pub fn function_spec(spec: &Spec) -> Result<FunctionSpec, AnnotationError> {
    let empty = HashMap::new();
    let annotations = spec.annotations().as_ref().unwrap_or(&empty);
    FunctionSpec::parse(annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

pub(super) fn is_pause_container(spec: &Spec) -> bool {
    let annotation =
        spec.annotations().as_ref().and_then(|all| all.get("io.kubernetes.cri.container-type"));
    annotation.is_some_and(|kind| kind == "sandbox")
}

fn native(spec: &Spec, annotations: &FunctionSpec) -> Result<Plan, PlanError> {
    // Pod annotations reach every container of the pod, sidecars too.
    if !annotations.given.is_empty() && annotations.pod.is_empty() {
        return Err(PlanError::NotAFunction {
            command: args(spec).first().cloned().unwrap_or_default(),
            keys: annotations.given.join(", "),
        });
    }
    Ok(Plan { workload: Workload::Native, record: None, note: "native".to_owned() })
}

pub(crate) fn args(spec: &Spec) -> &[String] {
    spec.process().as_ref().and_then(|process| process.args().as_deref()).unwrap_or_default()
}

fn entry(
    module: &CheckedModule,
    role: Role,
    named: Option<&str>,
    origin: &str,
) -> Result<Entry, PlanError> {
    use cwasi_abi::export;
    let missing = |export: &str, hint| PlanError::NoEntry {
        origin: origin.to_owned(),
        export: export.to_owned(),
        hint,
        exports: module.exports.join(", "),
    };
    if named.is_none() && role == Role::Secondary && module.is_reactor() {
        return if module.has_export(export::ALLOC) {
            Ok(Entry::Reactor)
        } else {
            Err(missing(export::ALLOC, ", which a reactor needs"))
        };
    }
    let wanted = named.unwrap_or(export::START);
    if module.has_export(wanted) {
        return Ok(Entry::Command { export: wanted.to_owned() });
    }
    if role == Role::Primary && module.is_reactor() {
        return Err(missing(wanted, ": it is a reactor, start it with cwasi.role=secondary"));
    }
    Err(missing(wanted, ""))
}

/// What to tell the user of a module that can be started in two ways, when nothing says which is meant.
fn doubt(module: &CheckedModule, role: Role, found: &Found) -> Option<String> {
    use cwasi_abi::export::{HANDLE, START};
    if !(module.has_export(START) && module.is_reactor()) {
        return None;
    }
    let Found { origin, command, .. } = found;
    Some(match role {
        Role::Secondary => format!(
            "{origin} exports both `{START}` and `{HANDLE}`: as a secondary it is a reactor, `{START}` does not run, nor what it \
             initialises; link it as a reactor, or name {command}#{START} to have it run as a command for each request"
        ),
        Role::Primary => format!(
            "{origin} exports both `{START}` and `{HANDLE}`: as a primary it is a command, `{START}` runs and no request comes to \
             `{HANDLE}`; start it with cwasi.role=secondary for that, or name {command}#{START} if this is meant"
        ),
    })
}

pub(crate) fn function_name(
    annotations: &FunctionSpec,
    command: &str,
) -> Result<String, PlanError> {
    if let Some(name) = &annotations.function {
        return Ok(name.clone());
    }
    let file = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command);
    let name = file.strip_suffix(".wasm").unwrap_or(file);
    crate::config::function_name(name)
        .map_err(|problem| PlanError::Name { name: name.to_owned(), problem })
}

/// The group whose instances are nearest to each other; empty for a container that is alone in its shim.
fn group(request: &PlanRequest<'_>, annotations: &FunctionSpec) -> String {
    let alone = annotations.pod.is_empty() && annotations.workflow.is_empty();
    if alone { String::new() } else { request.group.to_owned() }
}

fn record(request: &PlanRequest<'_>, annotations: &FunctionSpec, identity: &Identity) -> Record {
    Record {
        identity: identity.clone(),
        instance: request.instance.to_owned(),
        group: group(request, annotations),
        workflow: annotations.workflow.clone(),
        trust: annotations.trust.clone(),
        allow: annotations.allow.clone(),
        socket: request.socket.to_owned(),
        max_payload: annotations.max_payload,
        container: request.container.to_owned(),
    }
}

fn launch(
    request: &PlanRequest<'_>,
    spec: &Spec,
    annotations: FunctionSpec,
    identity: Identity,
    entry: Entry,
    compiled: Compiled,
) -> FunctionLaunch {
    let pool_max = pool_max(spec, &annotations);
    let milliseconds = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let env = spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default();
    FunctionLaunch {
        identity,
        group: group(request, &annotations),
        workflow: annotations.workflow,
        trust: annotations.trust,
        instance: request.instance.to_owned(),
        role: annotations.role,
        mode: annotations.mode,
        artifact: compiled.artifact.path,
        module_digest: compiled.digest,
        entry,
        isolation: annotations.isolation,
        embedded: compiled.embedded,
        not_embedded: compiled.not_embedded,
        args: args(spec).to_vec(),
        env,
        preopens: preopens(spec),
        files: compiled.opens_files.then(|| files(spec)),
        concurrency: annotations.concurrency,
        queue: annotations.queue,
        timeout_ms: annotations.timeout.map(milliseconds),
        max_payload: annotations.max_payload,
        pool_max,
        memory_max: annotations.memory,
        max_requests: annotations.max_requests,
        idle_ms: annotations.idle.map(milliseconds),
        fan_in: annotations.fan_in,
        egress: egress(spec, annotations.network),
    }
}

/// Names are looked up in files that the operator mounted, never in those of an image.
fn egress(spec: &Spec, entries: Vec<Destination>) -> Option<Egress> {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    // The file itself or a directory that it is in.
    let is_mounted =
        |path: &str| mounts.iter().any(|mount| Path::new(path).starts_with(mount.destination()));
    let (trusts_hosts, trusts_resolver) = (is_mounted(HOSTS_FILE), is_mounted(RESOLVER_FILE));
    (!entries.is_empty()).then_some(Egress { entries, trusts_hosts, trusts_resolver })
}

/// What each worker may keep for segments that it lends; nothing in a function that has no group to lend to.
fn pool_max(spec: &Spec, annotations: &FunctionSpec) -> u64 {
    if annotations.workflow.is_empty() && annotations.trust.is_empty() {
        return 0;
    }
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let memory = resources.and_then(|resources| resources.memory().as_ref());
    let limit = memory.and_then(|memory| u64::try_from(memory.limit()?).ok());
    let share = limit.filter(|limit| *limit > 0).map(|limit| limit / POOL_SHARE);
    share.unwrap_or(u64::MAX).min(POOL_MAX) / u64::from(annotations.concurrency.max(1))
}

/// Mounts that the guest may open: what somebody asked for, not the container's plumbing.
fn guest_mounts(spec: &Spec) -> impl Iterator<Item = &Mount> {
    let plumbing = |mount: &Mount| {
        let at = mount.destination();
        ["/proc", "/sys", "/dev"].iter().any(|top| at.starts_with(top))
            || (at == Path::new("/run") && is_tmpfs(mount))
    };
    spec.mounts().as_deref().unwrap_or_default().iter().filter(move |mount| !plumbing(mount))
}

fn is_tmpfs(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("tmpfs")
}

/// The directories among them.
fn preopens(spec: &Spec) -> Vec<PathBuf> {
    let is_dir = |mount: &&Mount| {
        is_tmpfs(mount) || mount.source().as_ref().is_some_and(|source| source.is_dir())
    };
    guest_mounts(spec).filter(is_dir).map(|mount| mount.destination().clone()).collect()
}

/// What is shown beside them. A tmpfs is in one place only: mounted again it would be another one.
fn files(spec: &Spec) -> Files {
    let cwd = spec.process().as_ref().map_or_else(|| "/".into(), |process| process.cwd().clone());
    let shown = guest_mounts(spec).filter(|mount| !is_tmpfs(mount));
    Files { cwd, mounts: shown.map(|mount| mount.destination().clone()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

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
