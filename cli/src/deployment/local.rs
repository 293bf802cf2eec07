//! Functions as processes of this user, for `cwasi run --local`: a daemon of this command instead of containerd, below
//! a folder that is removed at the end. Compiled modules stay in the user's cache.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cwasi_config::NodeConfig;
use cwasi_content::folder::{ARCHIVE_FILE, FolderStore, IMAGE_FILE};
use cwasi_host::group::group_id;
use cwasi_shim::local::{LocalDaemon, Streams, keep_spans};
use cwasi_sys::file_access;
use cwasi_sys::resolved_path::FileIdentity;
use oci_spec::runtime::Spec;

use super::mounts;
use super::platform::{FunctionImage, Known, PlannedFunction, Platform, ServiceContainer};
use super::run_folder::RunFolder;
use super::{user_cache, user_folders};
use crate::containerd::oci::{self, FunctionSpec, Network};
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use crate::output;
use cwasi_workflow::services::Service;
use cwasi_workflow::{Embedded, Function, Mount, Role, Source, Workflow};

/// What the user has to know, once for each run.
const NOTICE: &str = "cwasi: --local: functions run as processes of this user, without containers; their isolation is \
                      weaker than on containerd";
/// Folder of the images of functions without a workflow.
const ACTIONS: &str = "actions";
/// Beginning of the state folder's name.
const PREFIX: &str = "cwasi-local-";

pub struct LocalNode {
    config: NodeConfig,
    namespace: String,
    store: FolderStore,
    daemon: LocalDaemon,
    /// Where the traces of the run are kept.
    kept: Option<PathBuf>,
    // Removed last.
    _folder: RunFolder,
}

impl LocalNode {
    /// Starts the daemon of a workflow.
    ///
    /// # Errors
    /// When a field needs containerd, no folder can be made, or the daemon does not start.
    pub async fn start(workflow: &Workflow, namespace: &str) -> Result<Self, Failure> {
        check(workflow)?;
        Self::bare(&workflow.name, namespace).await
    }

    /// The same for functions that are no workflow's, which share the daemon of this name.
    ///
    /// # Errors
    /// When no folder can be made, or the daemon does not start.
    pub async fn bare(name: &str, namespace: &str) -> Result<Self, Failure> {
        output::note(NOTICE);
        if !file_access::is_supported() {
            output::note(
                "cwasi: this kernel has no Landlock: only the engine keeps functions from other files",
            );
        }
        let folder = state_folder()?;
        let kept = user_folders::user_state()?;
        let (config, file) = configuration(folder.path())?;
        let store = FolderStore::below(folder.path());
        let annotations = [("cwasi.workflow".to_owned(), name.to_owned())].into();
        let group = group_id(namespace, "", &annotations);
        let daemon = LocalDaemon::start(&config, namespace, &group, file.as_deref()).await?;
        let namespace = namespace.to_owned();
        Ok(Self { config, namespace, store, daemon, kept, _folder: folder })
    }

    /// Starts a function without a workflow; its container is named as it is.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn start_action(
        &self,
        action: &LocalAction<'_>,
        stdio: &Stdio,
    ) -> Result<(), Failure> {
        let LocalAction { id, module, archive, export, env, folder, annotations } = *action;
        let command = format!("/{id}.wasm");
        let identity = folder.map(|(_, identity)| identity);
        let folder = folder.map(|(mount, _)| mount.clone());
        let mut spec = oci::spec(&FunctionSpec {
            cgroup: None,
            command: export.map_or(command.clone(), |export| format!("{command}#{export}")),
            image_env: Vec::new(),
            working_dir: "/".into(),
            args: &[],
            env,
            network: Network::Host,
            mounts: folder.as_slice(),
            annotations,
        })?;
        if let (Some(mount), Some(identity)) = (&folder, identity) {
            oci::pin(&mut spec, &mount.target, identity);
        }
        let plan = ProcessPlan { spec, image: format!("{ACTIONS}/{id}"), command };
        write(&self.store.image(&plan.image), module)?;
        // Of use only to a user who trusts someone. What an action with the same id left goes with its bundle.
        if let Some(archive) = archive.filter(|_| !self.config.compile.trusted_keys.is_empty()) {
            write(&self.store.bundle(id).join(ARCHIVE_FILE), archive)?;
        }
        self.create(id, &plan, stdio).await?;
        self.start(id).await
    }

    /// Ends such a function and removes its files.
    ///
    /// # Errors
    /// When it survives, or a file cannot be removed.
    pub async fn remove_action(&self, id: &str) -> Result<(), Failure> {
        self.remove(id).await?;
        let bundle = self.store.bundle(id);
        if bundle.exists() {
            fs::remove_dir_all(bundle)?;
        }
        Ok(())
    }

    /// Ends the daemon and removes the folder. The spans of the run are kept for `cwasi trace`.
    pub async fn end(self) {
        self.daemon.end().await;
        let Some(kept) = self.kept else { return };
        if let Err(error) = keep_spans(&self.config, &kept) {
            output::note(format_args!("cwasi: the trace of this run is not kept: {error}"));
        }
    }
}

/// A function without a workflow.
#[derive(Clone, Copy, Debug)]
pub struct LocalAction<'a> {
    /// Its name, and that of its container.
    pub id: &'a str,
    pub module: &'a [u8],
    /// The archive that it came in, which may have precompiled code.
    pub archive: Option<&'a [u8]>,
    /// The export that runs; `None` = as the module says.
    pub export: Option<&'a str>,
    pub env: &'a [(String, String)],
    /// A folder of the host, and which one it is: another one in its place is refused.
    pub folder: Option<(&'a Mount, FileIdentity)>,
    pub annotations: &'a BTreeMap<String, String>,
}

/// A function that can be created.
#[derive(Debug)]
pub struct ProcessPlan {
    spec: Spec,
    image: String,
    command: String,
}

impl Platform for LocalNode {
    type Plan = ProcessPlan;

    async fn provide(&self, function: &str, image: &FunctionImage) -> Result<(), Failure> {
        let Some(module) = &image.module else {
            return Err(needs_containerd(function, "image", "use module"));
        };
        let path = self.store.image(&image.name);
        Ok(write(&path, module)?)
    }

    async fn plan(&self, planned: PlannedFunction<'_>) -> Result<ProcessPlan, Failure> {
        let PlannedFunction { function, image, annotations, .. } = planned;
        mounts::check(function)?;
        let command = format!("/{}.wasm", function.name);
        let spec = oci::spec(&FunctionSpec {
            cgroup: None,
            command: command.clone(),
            image_env: Vec::new(),
            working_dir: function.working_dir.clone().unwrap_or_else(|| "/".into()),
            args: &function.args,
            env: &function.env,
            network: Network::Host,
            mounts: &function.mounts,
            annotations,
        })?;
        Ok(ProcessPlan { spec, image: image.name.clone(), command })
    }

    async fn provide_service(&self, service: &Service) -> Result<(), Failure> {
        Err(starts_no_service(service))
    }

    async fn plan_service(
        &self,
        _: &str,
        service: &Service,
        _: &str,
    ) -> Result<ProcessPlan, Failure> {
        Err(starts_no_service(service))
    }

    async fn wait_until_ready(&self, _: &str, service: &Service) -> Result<(), Failure> {
        Err(starts_no_service(service))
    }

    async fn services(&self, _workflow: &str) -> Result<Vec<ServiceContainer>, Failure> {
        Ok(Vec::new())
    }

    async fn known(&self, _: &str, _: &str, _: &ProcessPlan) -> Result<Known, Failure> {
        // The folder is new.
        Ok(Known::Idle)
    }

    async fn create(&self, id: &str, plan: &ProcessPlan, stdio: &Stdio) -> Result<(), Failure> {
        let bundle = self.store.bundle(id);
        let module = fs::read(self.store.image(&plan.image))?;
        write(&bundle.join("rootfs").join(plan.command.trim_start_matches('/')), &module)?;
        write(&bundle.join(IMAGE_FILE), plan.image.as_bytes())?;
        plan.spec.save(bundle.join("config.json"))?;
        let Stdio { stdin, stdout, stderr } = stdio.clone();
        Ok(self.daemon.create(id, &bundle, &Streams { stdin, stdout, stderr }).await?)
    }

    async fn start(&self, id: &str) -> Result<(), Failure> {
        Ok(self.daemon.start_task(id).await?)
    }

    async fn wait(&self, id: &str) -> Result<u32, Failure> {
        Ok(self.daemon.wait(id).await?)
    }

    async fn stop(&self, id: &str) -> Result<(), Failure> {
        Ok(self.daemon.stop(id).await?)
    }

    async fn remove(&self, id: &str) -> Result<(), Failure> {
        Ok(self.daemon.remove(id).await?)
    }

    async fn deployed(&self, _workflow: &str) -> Result<Vec<String>, Failure> {
        // They end with the command.
        Ok(Vec::new())
    }

    fn config(&self) -> &NodeConfig {
        &self.config
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Refuses what only containerd can do.
fn check(workflow: &Workflow) -> Result<(), Failure> {
    if let Some(service) = workflow.used_services().find(|service| service.is_started()) {
        return Err(starts_no_service(service));
    }
    for function in workflow.functions.iter().filter(|function| function.role != Role::Library) {
        let Function { name, node, source, embed, annotations, mounts, .. } = function;
        if node.is_some() {
            return Err(needs_containerd(name, "node", "remove it"));
        }
        if matches!(source, Source::Image(_)) {
            return Err(needs_containerd(name, "image", "use module"));
        }
        if embed.iter().any(|(_, from)| matches!(from, Embedded::Image(_))) {
            return Err(needs_containerd(name, "embed", "name a function of the file"));
        }
        if mounts::file_in_folder(mounts).is_some() {
            let instead = "mount a folder there, or the file elsewhere";
            return Err(needs_containerd(name, "mounts", instead));
        }
        let http = annotations.get("cwasi.http").map_or("", String::as_str);
        if http.split(',').any(|entry| entry.trim() == "gateway") {
            output::note(format_args!(
                "cwasi: function {name}: field `http`: no gateway serves it with --local, a port does"
            ));
        }
    }
    Ok(())
}

fn starts_no_service(service: &Service) -> Failure {
    let name = &service.name;
    let text = format!(
        "service {name}: --local starts no containers: name the address of one that runs with --service {name}=HOST:PORT, \
         or run without --local"
    );
    Failure::text(Exit::Data, text)
}

fn needs_containerd(function: &str, field: &str, instead: &str) -> Failure {
    let text = format!(
        "function {function}: field `{field}` needs containerd, and --local has none: {instead}, or run without --local"
    );
    Failure::text(Exit::Data, text)
}

/// The user's configuration, with folders of this user, and its file.
fn configuration(state: &Path) -> Result<(NodeConfig, Option<PathBuf>), Failure> {
    // Errors name it also where it does not exist yet. The machine's configuration is for its daemons.
    let (file, is_named) = user_folders::config_file()?.unzip();
    let exists = file.as_ref().is_some_and(|file| is_named == Some(true) || file.exists());
    let mut config = match &file {
        Some(file) if exists => NodeConfig::load(None, Some(file))?,
        Some(_) | None => NodeConfig::default(),
    };
    let cache = user_folders::cache().with_context(|| {
        "there is no folder for compiled modules: set HOME or XDG_CACHE_HOME".to_owned()
    })?;
    config.state_dir = state.to_owned();
    config.logs.dir = None;
    config.cache_dir = cache.join("cwasi");
    user_cache::check(&config.cache_dir)?;
    config.shim_cgroup.clear();
    config.compile.cgroup.clear();
    config.cgroup_driver = cwasi_config::CgroupDriver::default();
    Ok((config, file))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, bytes)
}

/// Makes the folder of one run, and removes those of commands that were killed.
fn state_folder() -> Result<RunFolder, Failure> {
    let base = user_folders::runtime()?;
    let make = || -> io::Result<RunFolder> {
        let folder = RunFolder::new(&base, PREFIX)?;
        fs::create_dir(folder.path().join("bundles"))?;
        Ok(folder)
    };
    Ok(make().context("a folder for the functions' state cannot be made")?)
}
