//! From a bundle to a plan: read it once, find and check the module, compile it, say what to provision.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use oci_spec::runtime::{Mount, Spec};

use super::aot::{AotCache, AotError, CompileChild};
use super::module::{self, CheckedModule, MAGIC, MODULE_MAX, ModuleError};
use super::registry::Record;
use crate::config::annotations::{AnnotationError, FunctionSpec};
use crate::wire::control::{Entry, FunctionLaunch, Role, Workload};
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

/// The function coordinator of one shim daemon.
#[derive(Clone, Debug)]
pub struct Coordinator<S, C> {
    /// Compiled modules.
    pub cache: AotCache,
    /// Images.
    pub images: S,
    /// Compiler.
    pub compiler: C,
}

impl<S: ImageStore, C: CompileChild> Coordinator<S, C> {
    /// Plans one container. Slow when the module has to be compiled; touches nothing but the cache.
    ///
    /// # Errors
    /// What the user has to change.
    pub async fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
        let spec = load_spec(request.bundle)?;
        let annotations = function_spec(&spec)?;
        let Some(found) = self.find_module(&spec, request).await? else {
            return native(&spec, &annotations);
        };
        let module = module::check(&found.bytes, &found.origin)?;
        if module.dropped_native {
            tracing::warn!(container = request.container, origin = %found.origin,
                "native code in the module's custom section `wasmedge` was dropped");
        }
        let entry = entry(&module, annotations.role, found.export.as_deref(), &found.origin)?;
        let name = function_name(&annotations, &found.command)?;
        let identity = Identity {
            namespace: request.namespace.to_owned(),
            pod_namespace: annotations.pod_namespace.clone(),
            function: name,
        };
        let artifact = self.cache.artifact(&module, &self.compiler).await?;
        let note = match artifact.compiled {
            Some(took) => format!("compiled {} in {:.1} s", found.origin, took.as_secs_f64()),
            None => format!("loaded {} from the AOT cache", found.origin),
        };
        let record =
            (annotations.role == Role::Secondary).then(|| record(request, &annotations, &identity));
        let launch =
            launch(request, &spec, annotations, identity, entry, module.digest, artifact.path);
        Ok(Plan { workload: Workload::Function(Box::new(launch)), record, note })
    }

    async fn find_module(
        &self,
        spec: &Spec,
        request: &PlanRequest<'_>,
    ) -> Result<Option<Found>, PlanError> {
        if is_pause_container(spec) {
            return Ok(None);
        }
        let command = args(spec).first().cloned().ok_or(PlanError::NoCommand)?;
        let (path, export) = match command.split_once('#') {
            Some((path, export)) => (path.to_owned(), Some(export.to_owned())),
            None => (command.clone(), None),
        };
        let looks_wasm = path.ends_with(".wasm");
        if let Some(bytes) = read_module(spec, request.rootfs, &path, looks_wasm)? {
            let origin = format!("{path} in the root file system");
            return Ok(Some(Found { bytes, origin, command: path, export }));
        }
        if !looks_wasm && !is_empty_dir(request.rootfs) {
            return Ok(None);
        }
        match self.images.wasm_layer(request.container).await {
            Ok(Some(ImageModule { image, bytes })) => {
                let origin = format!("the Wasm layer of image {image}");
                Ok(Some(Found { bytes, origin, command: path, export }))
            }
            Ok(None) if looks_wasm => Err(PlanError::NoModule {
                path,
                image: "its image has no layer of a WebAssembly media type".to_owned(),
            }),
            Err(message) if looks_wasm => Err(PlanError::NoModule { path, image: message }),
            Ok(None) | Err(_) => Ok(None),
        }
    }
}

struct Found {
    bytes: Vec<u8>,
    origin: String,
    command: String,
    export: Option<String>,
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

fn is_pause_container(spec: &Spec) -> bool {
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

fn args(spec: &Spec) -> &[String] {
    spec.process().as_ref().and_then(|process| process.args().as_deref()).unwrap_or_default()
}

/// Bytes of the module that `path` names inside `rootfs`; `None` when there is no such file, or a file that
/// is no module and does not claim to be one.
fn read_module(
    spec: &Spec,
    rootfs: &Path,
    path: &str,
    looks_wasm: bool,
) -> Result<Option<Vec<u8>>, PlanError> {
    let cwd = spec.process().as_ref().map_or(Path::new("/"), |process| process.cwd().as_path());
    let inside = cwd.join(path);
    let fail = |source: io::Error| PlanError::File { path: inside.clone(), source };
    let root =
        File::open(rootfs).map_err(|source| PlanError::File { path: rootfs.to_owned(), source })?;
    // A path of the image must not lead out of its root, whatever symbolic links it has.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let mut file = match openat2(root.as_fd(), &inside, how) {
        Ok(fd) => File::from(fd),
        Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => return Ok(None),
        Err(errno) => return Err(fail(errno.into())),
    };
    let data = file.metadata().map_err(fail)?;
    if !data.is_file() {
        return Ok(None);
    }
    if data.len() > MODULE_MAX && looks_wasm {
        let origin = inside.display().to_string();
        return Err(ModuleError::TooLarge { origin, length: data.len() }.into());
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(fail)?;
    if bytes != MAGIC && !looks_wasm {
        return Ok(None);
    }
    file.take(MODULE_MAX).read_to_end(&mut bytes).map_err(fail)?;
    Ok(Some(bytes))
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
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

fn function_name(annotations: &FunctionSpec, command: &str) -> Result<String, PlanError> {
    if let Some(name) = &annotations.function {
        return Ok(name.clone());
    }
    let file = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command);
    let name = file.strip_suffix(".wasm").unwrap_or(file);
    crate::config::function_name(name)
        .map_err(|problem| PlanError::Name { name: name.to_owned(), problem })
}

fn record(request: &PlanRequest<'_>, annotations: &FunctionSpec, identity: &Identity) -> Record {
    Record {
        identity: identity.clone(),
        instance: request.instance.to_owned(),
        workflow: annotations.workflow.clone(),
        trust: String::new(),
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
    module_digest: String,
    artifact: PathBuf,
) -> FunctionLaunch {
    let milliseconds = |d: std::time::Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let env = spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default();
    FunctionLaunch {
        identity,
        workflow: annotations.workflow,
        instance: request.instance.to_owned(),
        role: annotations.role,
        mode: annotations.mode,
        artifact,
        module_digest,
        entry,
        embedded: Vec::new(),
        not_embedded: BTreeMap::new(),
        args: args(spec).to_vec(),
        env,
        preopens: preopens(spec.mounts().as_deref().unwrap_or_default()),
        concurrency: annotations.concurrency,
        queue: annotations.queue,
        timeout_ms: annotations.timeout.map(milliseconds),
        max_payload: annotations.max_payload,
        memory_max: annotations.memory,
        max_requests: annotations.max_requests,
        idle_ms: annotations.idle.map(milliseconds),
    }
}

/// Mounts that the guest may open: directories that somebody asked for, not the container's plumbing.
fn preopens(mounts: &[Mount]) -> Vec<PathBuf> {
    let plumbing = |mount: &Mount| {
        let at = mount.destination();
        ["/proc", "/sys", "/dev"].iter().any(|top| at.starts_with(top))
            || (at == Path::new("/run") && mount.typ().as_deref() == Some("tmpfs"))
    };
    let is_dir = |mount: &Mount| match (mount.typ().as_deref(), mount.source()) {
        (Some("tmpfs"), _) => true,
        (_, Some(source)) => source.is_dir(),
        _ => false,
    };
    mounts
        .iter()
        .filter(|mount| !plumbing(mount) && is_dir(mount))
        .map(|mount| mount.destination().clone())
        .collect()
}
