//! `cwasi image build MODULE --tag NAME`: an image of a module, into containerd, a registry or an archive; the module
//! is a file, or the layer of an artifact in containerd. `ls` and `prune`: the images that workflows have left.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use cwasi_config::{function_name, regular_file};
use cwasi_content::manifest::wasm_layer;
use cwasi_coordinator::module;
use cwasi_coordinator::precompiled::SIGNATURE_EXTENSION;
use serde_json::json;

use super::local_images;
use crate::arguments::{Global, SchemeArguments};
use crate::deployment::Node;
use crate::failure::{Exit, Failure};
use crate::image::{Image, ImageKind};
use crate::interrupt::Interrupt;
use crate::output;
use crate::registry::Repository;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct ImageVerb {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build an image of a module: the same module gives the same bytes
    Build(Build),
    /// List the images that workflows with local modules have made, and the containers that use them
    Ls,
    /// Remove such images that no container uses; not while a workflow starts
    Prune,
}

#[derive(Debug, Args)]
struct Build {
    /// The module
    #[arg(value_name = "MODULE", required_unless_present = "from_artifact")]
    module: Option<PathBuf>,
    /// Take the module of an artifact in containerd, such as `wkg`, `wash` and `spin` push, instead of a file; the file
    /// in the image gets the artifact's name
    #[arg(long, conflicts_with = "module", value_parser = NonEmptyStringValueParser::new(), value_name = "IMAGE")]
    from_artifact: Option<String>,
    /// Name of the image, such as localhost/greeter:1, or REGISTRY/NAME:TAG with --push
    #[arg(short, long, value_parser = NonEmptyStringValueParser::new(), value_name = "NAME")]
    tag: String,
    /// Signed native code of the module, as `cwasi compile --sign` writes it: it is put beside the module of a plain image,
    /// with its signature; repeatable
    #[arg(long, value_name = "FILE")]
    code: Vec<PathBuf>,
    /// Kind of image
    #[arg(long, value_enum, default_value_t = ImageKind::Plain)]
    kind: ImageKind,
    /// Write an archive for `ctr images import` instead of writing into containerd
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Push it to its registry instead of writing into containerd, with the credentials of `docker login`
    #[arg(long, conflicts_with = "output")]
    push: bool,
    #[command(flatten)]
    scheme: SchemeArguments,
}

impl ImageVerb {
    /// Builds an image and prints its digest, or lists or removes images.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Build(build) => build.run(global).await,
            Verb::Ls => local_images::list(global).await,
            Verb::Prune => local_images::prune(global).await,
        }
    }
}

impl Build {
    async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let image = match &self.from_artifact {
            Some(artifact) => self.of_artifact(artifact, global).await?,
            None => self.of_file()?,
        };
        if self.push {
            // It may wait for a credential helper, which a signal ends as it ends this process.
            let repository = Repository::open(&self.tag, self.scheme.plain_http)?;
            Interrupt::new()?
                .or(async { Ok(repository.push(&image, output::note).await?) })
                .await?;
        } else if let Some(output) = &self.output {
            fs::write(output, image.to_archive()?)
                .with_context(|| format!("{} cannot be written", output.display()))?;
        } else {
            let containerd = Node::connect(global).await?.containerd;
            let write = async { Ok(containerd.write_image(&image).await?) };
            let written = Interrupt::new()?.or(write).await;
            containerd.settled().await;
            written?;
        }
        let (name, digest) = (&image.name, image.manifest.digest());
        if global.json {
            output::json_line(&json!({ "name": name, "digest": digest }))?;
        } else {
            output::line(format_args!("{name} {digest}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn of_file(&self) -> Result<Image, Failure> {
        let path = self.module.as_deref().ok_or_else(|| {
            Failure::text(Exit::Usage, "name a module, or an artifact with --from-artifact")
        })?;
        let bytes = regular_file::read(path)
            .with_context(|| format!("module {} cannot be read", path.display()))
            .map_err(|error| Failure::new(Exit::Missing, error))?;
        let file = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        self.image(file, &bytes, &path.display().to_string())
    }

    async fn of_artifact(&self, artifact: &str, global: &Global) -> Result<Image, Failure> {
        let containerd = Node::connect(global).await?.containerd;
        let stored = containerd.image(artifact).await?;
        let data =
            |problem: String| Failure::text(Exit::Data, format!("image {artifact} {problem}"));
        let layer = wasm_layer(&stored.manifest).map_err(|error| data(error.to_string()))?;
        let layer = layer.ok_or_else(|| {
            data(
                "is no artifact of a module: none of its layers has a WebAssembly media type"
                    .into(),
            )
        })?;
        let bytes = containerd.layer(&layer).await?;
        self.image(file_of(artifact), &bytes, &format!("the Wasm layer of image {artifact}"))
    }

    /// The image of a module as the file `/FILE.wasm`; `origin` names the module in errors.
    fn image(&self, file: &str, module: &[u8], origin: &str) -> Result<Image, Failure> {
        module::check(module, origin).map_err(|error| Failure::new(Exit::Data, error))?;
        function_name(file).map_err(|problem| {
            Failure::text(Exit::Data, format!("the module's file name `{file}` {problem}"))
        })?;
        let beside = self.beside(file)?;
        Ok(Image::build_with(&self.tag, self.kind, (file, module), &beside)?)
    }

    /// Code and signatures for an image whose module is `FILE.wasm`, in the order of the command line.
    fn beside(&self, file: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        if self.kind != ImageKind::Plain && !self.code.is_empty() {
            let text =
                "--code needs --kind plain: a layer is the module alone; use cwasi compile --image";
            return Err(Failure::text(Exit::Usage, text));
        }
        let mut all = Vec::new();
        for path in &self.code {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with(&format!("{file}.")) {
                let text = format!(
                    "code {} is not named after the module: nodes look for {file}.cwasm and {file}.PROCESSOR.cwasm",
                    path.display()
                );
                return Err(Failure::text(Exit::Data, text));
            }
            let signature = format!("{}.{SIGNATURE_EXTENSION}", path.display());
            for (name, path) in [
                (name.clone(), path.clone()),
                (format!("{name}.{SIGNATURE_EXTENSION}"), PathBuf::from(signature)),
            ] {
                let bytes = regular_file::read(&path)
                    .with_context(|| format!("code {} cannot be read", path.display()))
                    .map_err(|error| Failure::new(Exit::Missing, error))?;
                all.push((name, bytes));
            }
        }
        Ok(all)
    }
}

/// The last part of an image's name, without tag and digest.
fn file_of(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map_or(last, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifacts_file_has_the_last_part_of_its_name() {
        for (image, file) in [
            ("ghcr.io/team/greeter:1", "greeter"),
            ("127.0.0.1:5000/greeter", "greeter"),
            ("host/a/b@sha256:aa", "b"),
            ("host/a/b:2@sha256:aa", "b"),
        ] {
            assert_eq!(file_of(image), file);
        }
    }
}
