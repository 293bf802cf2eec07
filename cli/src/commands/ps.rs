//! `cwasi ps`: the functions of a namespace.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::arguments::Global;
use crate::deployment::Node;
use crate::failure::Failure;
use crate::table::Table;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Ps {
    /// Only functions of this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Images and annotations, too
    #[arg(short, long)]
    verbose: bool,
}

impl Ps {
    /// Prints them.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        let tasks = node.containerd.tasks().await?;
        let wanted = |workflow: &str| self.workflow.as_ref().is_none_or(|name| name == workflow);
        let mut rows = Vec::new();
        for container in containers.iter().filter(|it| wanted(it.annotation("cwasi.workflow"))) {
            let task = tasks.get(&container.id);
            let status = match task {
                Some(task) if task.is_alive() => task.status.to_owned(),
                Some(task) => format!("{} ({})", task.status, task.exit),
                None => "CREATED".to_owned(),
            };
            rows.push((container, task.map(|task| task.pid), status));
        }
        if global.json {
            let rows = rows.iter().map(|(container, pid, status)| {
                json!({
                    "container": container.id,
                    "function": container.function(),
                    "workflow": container.annotation("cwasi.workflow"),
                    "role": role(container.is_secondary()),
                    "status": status,
                    "pid": pid,
                    "image": container.image,
                    "annotations": container.annotations,
                })
            });
            println!("{}", serde_json::to_string_pretty(&rows.collect::<Vec<_>>())?);
            return Ok(ExitCode::SUCCESS);
        }
        let mut table =
            Table::new(["CONTAINER", "FUNCTION", "WORKFLOW", "ROLE", "PID", "STATUS", "IMAGE"]);
        for (container, pid, status) in &rows {
            table.row([
                container.id.clone(),
                container.function().to_owned(),
                container.annotation("cwasi.workflow").to_owned(),
                role(container.is_secondary()).to_owned(),
                pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                status.clone(),
                if self.verbose { container.image.clone() } else { shortened(&container.image) },
            ]);
        }
        print!("{table}");
        if self.verbose {
            for (container, _, _) in &rows {
                println!("\n{}", container.id);
                let mut annotations: Vec<_> = container.annotations.iter().collect();
                annotations.sort();
                for (key, value) in annotations {
                    println!("  {key}={value}");
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

const fn role(secondary: bool) -> &'static str {
    if secondary { "secondary" } else { "primary" }
}

/// An image's name that fits into a table.
fn shortened(image: &str) -> String {
    const SHOWN: usize = 48;
    match image.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &image[..end]),
        None => image.to_owned(),
    }
}
