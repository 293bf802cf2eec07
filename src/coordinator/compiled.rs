//! Native code of a function and of its embedded modules. Runs in the shim daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::aot::{AotCache, Artifact, CompileChild, EntryInUse, PlaceError};
use super::embedding::Embedding;
use super::error::PlanError;
use super::images::{ImageOf, ImageStore};
use super::module::CheckedModule;
use super::offers::CodeSource;
use super::precompiled::{Offer, PrecompiledError, TrustedKeys};
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

/// Provides native code for the modules of one function, all for its engine.
pub(super) struct Compilation<'a, S, C, P> {
    pub(super) cache: &'a AotCache,
    pub(super) images: &'a S,
    pub(super) compiler: &'a C,
    /// Whose signatures count.
    pub(super) keys: &'a TrustedKeys,
    pub(super) progress: &'a P,
    /// Who waits for the compiler.
    pub(super) tenant: &'a str,
    pub(super) engine: Engine,
}

impl<S: ImageStore, C: CompileChild, P: Progress> Compilation<'_, S, C, P> {
    /// Compiles modules that are not in the cache, and of which no precompiled code came that the node trusts. `origin`
    /// names `root` in messages, and `source` is where such code of it may be.
    pub(super) async fn function(
        &self,
        root: CheckedModule,
        origin: &str,
        source: CodeSource<'_>,
        embedding: Embedding,
    ) -> Result<CompiledFunction, PlanError> {
        let engine = self.engine;
        let mut opens_files = root.opens_files;
        let mut embedded = Vec::with_capacity(embedding.modules.len());
        let (mut names, mut all_in_use, mut was_compiled) = (Vec::new(), Vec::new(), false);
        for found in embedding.modules {
            let dispatch = found.is_reactor();
            opens_files |= found.module.opens_files;
            let origin = format!("the module of image {}", found.grant.image.name);
            let embeds = !found.module.foreign.is_empty();
            let module = found.module.prepared_for(engine, embeds, &origin)?;
            let source = CodeSource::Image(ImageOf::Image(&found.grant.image));
            let Artifact { path, compiled, in_use } = self.code(&module, &origin, &source).await?;
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
        let artifact = self.code(&root, origin, &source).await?;
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

    /// One module's code: of the cache, or else what came with the module and a trusted key has signed, or else compiled.
    async fn code(
        &self,
        module: &CheckedModule,
        origin: &str,
        source: &CodeSource<'_>,
    ) -> Result<Artifact, PlanError> {
        if let Some(artifact) = self.cache.find(&module.digest, self.engine, self.keys) {
            return Ok(artifact);
        }
        if let Some(artifact) = self.precompiled(module, origin, source).await {
            return Ok(artifact);
        }
        let Self { cache, compiler, progress, tenant, engine, .. } = *self;
        Ok(cache.artifact(module, engine, origin, tenant, compiler, progress).await?)
    }

    /// The first precompiled code of the module that is as it should be. Says of each other one why it is not used.
    async fn precompiled(
        &self,
        module: &CheckedModule,
        origin: &str,
        source: &CodeSource<'_>,
    ) -> Option<Artifact> {
        // An archive is here already, and its sender should read that nothing of it is used.
        if !self.cache.trusts_others() && !matches!(source, CodeSource::Archive(_)) {
            return None;
        }
        let offers = match source.offers(self.images, self.engine).await {
            Ok(offers) => offers,
            Err(problem) => {
                self.progress
                    .warn(&format!("{origin}: no precompiled code is looked for: {problem}"));
                return None;
            }
        };
        for offer in offers {
            match self.taken(module, source, &offer).await {
                Ok(artifact) => {
                    let name = &offer.name;
                    self.progress.info(&format!("{origin} has trusted native code: {name}"));
                    return Some(artifact);
                }
                Err(why) => {
                    let name = &offer.name;
                    self.progress
                        .warn(&format!("{origin}: precompiled code {name} is not used: {why}"));
                }
            }
        }
        None
    }

    async fn taken(
        &self,
        module: &CheckedModule,
        source: &CodeSource<'_>,
        offer: &Offer,
    ) -> Result<Artifact, PlaceError> {
        let module = (module.digest.as_str(), self.engine);
        let verified = self.cache.verify(&offer.signature, self.keys, module)?;
        let code = source.code(self.images, offer, verified.length()).await;
        let code = code.map_err(|problem| PrecompiledError::Code { problem })?;
        self.cache.place(&verified, module, &code).await
    }
}
