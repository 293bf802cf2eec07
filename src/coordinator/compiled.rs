//! Native code of a function and of its embedded modules. Runs in the shim daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::aot::{AotCache, Artifact, CompileChild, EntryInUse};
use super::embedding::Embedding;
use super::error::PlanError;
use super::module::CheckedModule;
use super::progress::Progress;
use cwasi_config::Engine;
use cwasi_wire::control::EmbeddedModule;

/// The modules that a sandbox loads.
#[derive(Debug)]
pub(super) struct CompiledFunction {
    /// The function's own module.
    pub(super) artifact: Artifact,
    pub(super) digest: String,
    /// Embedded modules, each after its own imports.
    pub(super) embedded: Vec<EmbeddedModule>,
    /// Functions of `cwasi.embed` that cannot be embedded, with the reason.
    pub(super) not_embedded: BTreeMap<String, String>,
    /// True if one of the modules can open files.
    pub(super) opens_files: bool,
    /// For the log: compiled or loaded.
    pub(super) note: String,
    /// True if one of the modules was not in the cache.
    pub(super) was_compiled: bool,
    /// The cache's entries of all these modules.
    pub(super) in_use: Vec<Arc<EntryInUse>>,
}

/// What a sandbox is told about its code.
#[derive(Debug, Default)]
pub(super) struct LaunchCode {
    /// Native code of the function's own module; empty if it comes later.
    pub(super) artifact: PathBuf,
    pub(super) digest: String,
    /// As in [`CompiledFunction`].
    pub(super) embedded: Vec<EmbeddedModule>,
    pub(super) not_embedded: BTreeMap<String, String>,
    pub(super) opens_files: bool,
}

impl From<CompiledFunction> for LaunchCode {
    fn from(compiled: CompiledFunction) -> Self {
        let CompiledFunction { artifact, digest, embedded, not_embedded, opens_files, .. } =
            compiled;
        Self { artifact: artifact.path, digest, embedded, not_embedded, opens_files }
    }
}

/// Compiles modules that are not in the cache, all for the engine of `root`. `origin` names `root` in messages.
pub(super) async fn compile(
    cache: &AotCache,
    compiler: &impl CompileChild,
    (root, engine): (CheckedModule, Engine),
    origin: &str,
    embedding: Embedding,
    tenant: &str,
    progress: &impl Progress,
) -> Result<CompiledFunction, PlanError> {
    let mut opens_files = root.opens_files;
    let mut embedded = Vec::with_capacity(embedding.modules.len());
    let (mut names, mut all_in_use, mut was_compiled) = (Vec::new(), Vec::new(), false);
    for found in embedding.modules {
        let dispatch = found.is_reactor();
        opens_files |= found.module.opens_files;
        let origin = format!("the module of image {}", found.grant.image.name);
        let embeds = !found.module.foreign.is_empty();
        let module = found.module.prepared_for(engine, embeds, &origin)?;
        let Artifact { path, compiled, in_use } =
            cache.artifact(&module, engine, &origin, tenant, compiler, progress).await?;
        all_in_use.push(in_use);
        was_compiled |= compiled.is_some();
        let digest = module.digest;
        names.push(found.name.clone());
        let reason = found.grant.reason;
        embedded.push(EmbeddedModule {
            name: found.name,
            artifact: path,
            digest,
            dispatch,
            reason,
        });
    }
    let calls = embedded.iter().any(|module| module.dispatch);
    let embeds = calls || !root.foreign.is_empty();
    let root = root.prepared_for(engine, embeds, origin)?;
    let artifact = cache.artifact(&root, engine, origin, tenant, compiler, progress).await?;
    was_compiled |= artifact.compiled.is_some();
    all_in_use.push(Arc::clone(&artifact.in_use));
    let mut note = match artifact.compiled {
        Some(took) => format!("compiled {origin} in {:.1} s", took.as_secs_f64()),
        None => format!("loaded {origin} from the AOT cache"),
    };
    if !names.is_empty() {
        note = format!("{note}, embedded {}", names.join(", "));
    }
    let not_embedded = embedding.refused;
    Ok(CompiledFunction {
        artifact,
        digest: root.digest,
        embedded,
        not_embedded,
        opens_files,
        note,
        was_compiled,
        in_use: all_in_use,
    })
}
