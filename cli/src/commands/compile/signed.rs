//! Native code that leaves the node: compiled for named processors, with a signature beside each file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use cwasi_content::ContentStore;
use cwasi_content::referrers;
use cwasi_coordinator::fingerprint::{Fingerprint, fingerprint};
use cwasi_coordinator::precompiled::{KeyError, SIGNATURE_EXTENSION, SigningKey, Statement, sign};
use cwasi_coordinator::processor::{NATIVE, Processor};
use cwasi_coordinator::trust;
use cwasi_coordinator::{AotCache, ImageStore as _};
use oci_spec::image::{DescriptorBuilder, MediaType, Sha256Digest};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::native::{Compilers, Module};
use crate::arguments::Global;
use crate::deployment::Node;
use crate::failure::{Exit, Failure};
use crate::image::{Image, SignedCode};
use crate::output;
use crate::registry::Repository;

/// A key, and the processors to compile for.
pub(super) struct Signing {
    key: SigningKey,
    processors: Vec<String>,
}

impl Signing {
    /// Reads the key.
    pub(super) fn new(key: &Path, processors: &[String]) -> Result<Self, Failure> {
        let key = SigningKey::read(key).map_err(|error| {
            let exit = match &error {
                KeyError::Read { .. } => Exit::Missing,
                _ => Exit::Data,
            };
            Failure::new(exit, error)
        })?;
        let mut processors = processors.to_vec();
        processors.sort();
        processors.dedup();
        Ok(Self { key, processors })
    }

    /// Writes code and signatures of modules, beside each or into `folder`.
    pub(super) async fn files(
        self,
        modules: &[PathBuf],
        folder: Option<&Path>,
        compilers: &mut Compilers,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        let mut written = BTreeSet::new();
        for path in modules {
            let module = compilers.check(&super::read(path)?, &path.display().to_string())?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let folder = folder.or(path.parent()).unwrap_or(Path::new(""));
            for code in self.code(&module, &name, compilers).await? {
                let file = folder.join(&code.name);
                if !written.insert(file.clone()) {
                    let (file, name) = (file.display(), &module.origin);
                    let text = format!(
                        "{file} is of a module before {name} already: compile that one into another folder (--output)"
                    );
                    return Err(Failure::text(Exit::Usage, text));
                }
                write(&file, &code)?;
                let file = file.display();
                if global.json {
                    output::json_line(&json!({ "module": module.origin, "engine": module.engine,
                        "file": file.to_string(), "signature": format!("{file}.{SIGNATURE_EXTENSION}") }))?;
                } else {
                    output::line(format_args!("{file} signed"))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes an artifact that refers to an image of containerd: into containerd, or to the image's registry, over plain
    /// HTTP or not.
    pub(super) async fn image(
        self,
        image: &str,
        push: Option<Option<bool>>,
        compilers: &mut Compilers,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        let containerd = Node::connect(global).await?.containerd;
        let target = containerd.image_target(image).await?;
        let data = |problem: String| Failure::text(Exit::Data, problem);
        let digest = target.digest.strip_prefix("sha256:").unwrap_or_default();
        let hashed: Sha256Digest = digest
            .parse()
            .map_err(|_error| data(format!("image {image} has a digest that is no sha256")))?;
        let name = referrers::name_of(image, &target.digest)
            .ok_or_else(|| data(format!("image {image} has no repository: give it a name")))?;
        let subject = DescriptorBuilder::default()
            .media_type(MediaType::from(target.media_type.as_str()))
            .digest(hashed)
            .size(u64::try_from(target.size).unwrap_or_default())
            .build()
            .map_err(|error| data(format!("image {image} cannot be referred to: {error}")))?;
        let store =
            ContentStore { address: global.address.clone(), namespace: global.namespace.clone() };
        let stored = trust::Image { name: image.to_owned(), digest: target.digest };
        let bytes = store.module(&stored, None).await.map_err(data)?;
        let module = compilers.check(&bytes, &format!("the module of image {image}"))?;
        let code = self.code(&module, "module", compilers).await?;
        let artifact = Image::referrer(&name, subject, code)?;
        if let Some(plain_http) = push {
            let repository = Repository::open(&name, plain_http)?;
            let push = async { Ok(repository.push(&artifact, output::note).await?) };
            compilers.interrupt.or(push).await?;
        } else {
            let write = async { Ok(containerd.write_image(&artifact).await?) };
            let written = compilers.interrupt.or(write).await;
            containerd.settled().await;
            written?;
        }
        let digest = artifact.manifest.digest();
        if global.json {
            output::json_line(&json!({ "name": name, "digest": digest, "image": image }))?;
        } else {
            output::line(format_args!("{name} {digest}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The module's code for each processor, in files named after `name`.
    async fn code(
        &self,
        module: &Module,
        name: &str,
        compilers: &mut Compilers,
    ) -> Result<Vec<SignedCode>, Failure> {
        let engine = module.engine;
        let mut all = Vec::new();
        for processor in &self.processors {
            let processor = Processor::named(processor, engine)
                .map_err(|error| Failure::new(Exit::Usage, error))?;
            // An entry of its own: a node's own code may use more.
            let features = processor.features.join(" ");
            let inputs = |engine| Fingerprint { features: features.clone(), ..fingerprint(engine) };
            let config = &compilers.config;
            let cache = AotCache::new(&config.cache_dir, inputs, &config.compile);
            let artifact = compilers.compile(&cache, module, Some(&processor)).await?;
            let code = fs::read(&artifact.path)
                .with_context(|| format!("{} cannot be read", artifact.path.display()))?;
            let Fingerprint { version, options, architecture, .. } = fingerprint(engine);
            let statement = Statement {
                module: module.checked.digest.clone(),
                engine,
                version,
                options,
                architecture,
                features: processor.features,
                code: hex::encode(Sha256::digest(&code)),
                length: code.len() as u64,
            };
            let extension = engine.native_extension();
            let name = match processor.name {
                NATIVE => format!("{name}.{extension}"),
                level => format!("{name}.{level}.{extension}"),
            };
            all.push(SignedCode { name, code, signature: sign(&self.key, &statement) });
        }
        Ok(all)
    }
}

/// Writes code, and its signature beside it.
fn write(path: &Path, code: &SignedCode) -> Result<(), Failure> {
    let written = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("{} cannot be made", folder.display()))?;
    }
    written(path, &code.code)?;
    let signature = format!("{}.{SIGNATURE_EXTENSION}", path.display());
    Ok(written(Path::new(&signature), &code.signature)?)
}
