//! `cwasi image build MODULE NAME`: an image of a module, into containerd or an archive.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use cwasi::config::function_name;
use cwasi::coordinator::module;
use serde_json::json;

use crate::arguments::Global;
use crate::deployment::Node;
use crate::failure::{Exit, Failure};
use crate::image::{Image, ImageKind};

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
}

#[derive(Debug, Args)]
struct Build {
    /// The module
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    /// Name of the image, such as localhost/greeter:1
    #[arg(value_name = "NAME")]
    name: String,
    /// Kind of image
    #[arg(long, value_enum, default_value_t = ImageKind::Plain)]
    kind: ImageKind,
    /// Write an archive for `ctr images import` instead
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ImageVerb {
    /// Builds the image, and prints its digest.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let Verb::Build(Build { module: path, name, kind, output }) = self.verb;
        let bytes = fs::read(&path)
            .with_context(|| format!("module {} cannot be read", path.display()))
            .map_err(|error| Failure::new(Exit::Missing, error))?;
        module::check(&bytes, &path.display().to_string())
            .map_err(|error| Failure::new(Exit::Data, error))?;
        let file = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        function_name(file).map_err(|problem| {
            Failure::text(Exit::Data, format!("the module's file name `{file}` {problem}"))
        })?;
        let image = Image::build(&name, kind, file, &bytes)?;
        match output {
            Some(output) => fs::write(&output, image.to_archive()?)
                .with_context(|| format!("{} cannot be written", output.display()))?,
            None => Node::connect(global).await?.containerd.write_image(&image).await?,
        }
        let digest = image.manifest.digest();
        if global.json {
            println!("{}", json!({ "name": name, "digest": digest }));
        } else {
            println!("{name} {digest}");
        }
        Ok(ExitCode::SUCCESS)
    }
}
