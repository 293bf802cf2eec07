//! `cwasi inspect MODULE|IMAGE|FUNCTION`: what a module needs and offers, and why the runtime would refuse it. Of a
//! function also what runs it besides calls.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use cwasi_config::annotations::FunctionSpec;
use cwasi_config::regular_file;
use cwasi_content::ContentStore;
use cwasi_coordinator::ImageStore as _;
use cwasi_coordinator::trust::Image;
use serde::Serialize;

use super::activation::Activation;
use crate::arguments::Global;
use crate::containerd::containers::Container;
use crate::containerd::images::Stored;
use crate::deployment::hops::bytes;
use crate::deployment::platform::FunctionImage;
use crate::deployment::{Node, image_of};
use crate::failure::{Exit, Failure};
use crate::module::ModuleFacts;
use crate::output;
use crate::table::Table;
use cwasi_workflow::{Additions, Workflow};

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A .wasm file, or the name of an image, a container or a function in containerd
    #[arg(value_name = "MODULE|IMAGE|FUNCTION")]
    target: String,
    /// The target is a function of this workflow file, which need not be deployed
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the whole module as WebAssembly text
    #[arg(long, conflicts_with = "json")]
    text: bool,
}

/// What is inspected.
struct Target {
    module: Vec<u8>,
    /// What runs the function besides calls; `None` for a module or an image alone.
    activation: Option<Activation>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    facts: &'a ModuleFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    activation: Option<&'a Activation>,
}

impl Inspect {
    /// Prints it; exit code 1 if the runtime refuses the module.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let Target { module, activation } = self.target(global).await?;
        let facts = ModuleFacts::read(&module, &self.target)
            .map_err(|error| Failure::new(Exit::Data, error))?;
        if self.text {
            let text = wasmprinter::print_bytes(&module);
            output::text(text.map_err(|error| Failure::new(Exit::Data, error))?)?;
        } else if global.json {
            output::json(&Report { facts: &facts, activation: activation.as_ref() })?;
        } else {
            print(&self.target, &facts, activation.as_ref())?;
        }
        Ok(if facts.refused.is_some() { Exit::Findings.into() } else { ExitCode::SUCCESS })
    }

    async fn target(&self, global: &Global) -> Result<Target, Failure> {
        if let Some(file) = &self.file {
            return self.planned(file, global).await;
        }
        if Path::new(&self.target).is_file() {
            let module = regular_file::read(Path::new(&self.target))
                .with_context(|| format!("{} cannot be read", self.target))?;
            return Ok(Target { module, activation: None });
        }
        if self.target.ends_with(".wasm") {
            return Err(Failure::text(Exit::Missing, format!("there is no file {}", self.target)));
        }
        let node = Node::connect(global).await?;
        let missing = match node.containerd.image(&self.target).await {
            Ok(image) => {
                let module = module(global, image, None).await?;
                return Ok(Target { module, activation: None });
            }
            Err(error) if error.is_missing() => error,
            Err(error) => return Err(error.into()),
        };
        let mut containers = node.containerd.containers().await?;
        containers.retain(|it| !it.is_service());
        let is_target = |it: &&Container| it.id == self.target || it.function() == self.target;
        let Some(container) = containers.iter().find(is_target) else {
            let either = ", and no container or function has this name";
            return Err(Failure::from(missing).with(either));
        };
        let image = node.containerd.image(&container.image).await?;
        let module = module(global, image, container.module_path()).await?;
        let Container { annotations, .. } = container;
        let pairs = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let spec = FunctionSpec::parse(pairs)?;
        let activation =
            Activation::of_triggers(&spec.triggers).with_workers(&spec, node.config.workers_max);
        Ok(Target { module, activation: Some(activation) })
    }

    /// A function of a workflow file.
    async fn planned(&self, file: &Path, global: &Global) -> Result<Target, Failure> {
        let workflow = Workflow::load(file, &Additions::default())?;
        let Some(function) = workflow.function(&self.target) else {
            let text = format!("{} has no function {}", file.display(), self.target);
            return Err(Failure::text(Exit::Missing, text));
        };
        let activation = Some(Activation::of_function(function)?);
        let FunctionImage { name, module: of_file } = image_of(&workflow, function)?;
        if let Some(module) = of_file {
            return Ok(Target { module, activation });
        }
        let image = Node::connect(global).await?.containerd.image(&name).await?;
        Ok(Target { module: module(global, image, None).await?, activation })
    }
}

/// The module of an image; at its entrypoint without a path.
async fn module(global: &Global, image: Stored, path: Option<&str>) -> Result<Vec<u8>, Failure> {
    let store =
        ContentStore { address: global.address.clone(), namespace: global.namespace.clone() };
    let image = Image { name: image.name, digest: image.digest };
    store.module(&image, path).await.map_err(|problem| Failure::text(Exit::Data, problem))
}

fn print(
    target: &str,
    facts: &ModuleFacts,
    activation: Option<&Activation>,
) -> Result<(), Failure> {
    output::line(format_args!("{target}: {}, {}", facts.kind, bytes(facts.bytes as u64)))?;
    match facts.abi {
        _ if facts.is_component => output::line("engine: wasmtime (cwasi.engine)")?,
        Some(version) => output::line(format_args!("guest ABI: version {version}"))?,
        None => output::line("guest ABI: not used")?,
    }
    for (initial, maximum) in &facts.memories {
        let maximum = maximum.map_or_else(|| "4.0 GiB".to_owned(), bytes);
        let initial = bytes(*initial);
        output::line(format_args!("memory: {initial} at the start, at most {maximum}"))?;
    }
    let exports =
        if facts.exports.is_empty() { "none".to_owned() } else { facts.exports.join(", ") };
    output::line(format_args!("exports: {exports}"))?;
    for (what, value) in activation.map(Activation::lines).unwrap_or_default() {
        output::line(format_args!("{what}: {value}"))?;
    }
    let mut table = Table::new(["IMPORT", "SERVED BY"]);
    let rows = facts.imports.iter().map(|import| {
        let name = match import.name.as_str() {
            "" => import.module.clone(),
            name => format!("{}.{name}", import.module),
        };
        [name, import.served.clone()]
    });
    // The order in a module is its linker's, and differs between two builds.
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows.into_iter().for_each(|row| table.row(row));
    if !table.is_empty() {
        output::text(format_args!("\n{table}"))?;
    }
    if let Some(why) = &facts.refused {
        output::line(format_args!("\nrefused: {why}"))?;
    }
    Ok(())
}
