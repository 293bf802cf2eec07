//! `cwasi inspect MODULE|IMAGE`: what a module needs and offers, and why the runtime would refuse it.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use cwasi_content::ContentStore;
use cwasi_coordinator::ImageStore as _;
use cwasi_coordinator::trust::Image;

use crate::arguments::Global;
use crate::deployment::Node;
use crate::deployment::hops::bytes;
use crate::failure::{Exit, Failure};
use crate::module::ModuleFacts;
use crate::output;
use crate::table::Table;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A .wasm file, or the name of an image in containerd
    #[arg(value_name = "MODULE|IMAGE")]
    target: String,
    /// Print the whole module as WebAssembly text
    #[arg(long, conflicts_with = "json")]
    text: bool,
}

impl Inspect {
    /// Prints it; exit code 1 if the runtime refuses the module.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let module = self.module(global).await?;
        let facts = ModuleFacts::read(&module, &self.target)
            .map_err(|error| Failure::new(Exit::Data, error))?;
        if self.text {
            let text = wasmprinter::print_bytes(&module);
            output::text(text.map_err(|error| Failure::new(Exit::Data, error))?)?;
        } else if global.json {
            output::json(&facts)?;
        } else {
            print(&self.target, &facts)?;
        }
        Ok(if facts.refused.is_some() { Exit::Findings.into() } else { ExitCode::SUCCESS })
    }

    async fn module(&self, global: &Global) -> Result<Vec<u8>, Failure> {
        if Path::new(&self.target).is_file() {
            return Ok(fs::read(&self.target)
                .with_context(|| format!("{} cannot be read", self.target))?);
        }
        if self.target.ends_with(".wasm") {
            return Err(Failure::text(Exit::Missing, format!("there is no file {}", self.target)));
        }
        let node = Node::connect(global).await?;
        let image = node.containerd.image(&self.target).await?;
        let store =
            ContentStore { address: global.address.clone(), namespace: global.namespace.clone() };
        let image = Image { name: image.name, digest: image.digest };
        store.module(&image, None).await.map_err(|problem| Failure::text(Exit::Data, problem))
    }
}

fn print(target: &str, facts: &ModuleFacts) -> Result<(), Failure> {
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
    let mut table = Table::new(["IMPORT", "SERVED BY"]);
    for import in &facts.imports {
        let name = match import.name.as_str() {
            "" => import.module.clone(),
            name => format!("{}.{name}", import.module),
        };
        table.row([name, import.served.clone()]);
    }
    if !table.is_empty() {
        output::text(format_args!("\n{table}"))?;
    }
    if let Some(why) = &facts.refused {
        output::line(format_args!("\nrefused: {why}"))?;
    }
    Ok(())
}
