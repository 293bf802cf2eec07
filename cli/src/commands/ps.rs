//! `cwasi ps`: the functions and services of a namespace.

use std::process::ExitCode;

use clap::Args;
use cwasi_host::metrics::starts::{CodeSource, StartStages};
use serde_json::json;

use crate::arguments::{ClusterArguments, Global};
use crate::deployment::{Node, hops};
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Ps {
    /// Only functions of this workflow, with --kube
    #[arg(requires = "kube", conflicts_with = "workflow", value_name = "WORKFLOW")]
    pub name: Option<String>,
    /// Only functions of this workflow
    #[arg(long, value_name = "NAME")]
    pub workflow: Option<String>,
    /// Images, annotations and the stages of each start, too
    #[arg(short, long, conflicts_with = "kube")]
    pub verbose: bool,
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

impl Ps {
    /// Prints them.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        let tasks = node.containerd.tasks().await?;
        let mut starts = hops::starts(&node.config.state_dir, node.containerd.namespace());
        let wanted = |workflow: &str| self.workflow.as_ref().is_none_or(|name| name == workflow);
        let mut rows = Vec::new();
        for container in containers.iter().filter(|it| wanted(it.workflow())) {
            let task = tasks.get(&container.id);
            let status = match task {
                Some(task) if task.is_alive() => task.status.to_owned(),
                Some(task) => format!("{} ({})", task.status, task.exit),
                None => "CREATED".to_owned(),
            };
            let stages = starts.remove(&container.id);
            rows.push((container, task.map(|task| task.pid), status, stages));
        }
        if global.json {
            let rows = rows.iter().map(|(container, pid, status, stages)| {
                json!({
                    "container": container.id,
                    "function": container.function(),
                    "workflow": container.workflow(),
                    "role": container.role(),
                    "status": status,
                    "pid": pid,
                    "image": container.image,
                    "start": stages,
                    "annotations": container.annotations,
                })
            });
            output::json(&rows.collect::<Vec<_>>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table =
            Table::new(["CONTAINER", "FUNCTION", "WORKFLOW", "ROLE", "PID", "STATUS", "IMAGE"]);
        for (container, pid, status, _) in &rows {
            table.row([
                container.id.clone(),
                container.function().to_owned(),
                container.workflow().to_owned(),
                container.role().to_owned(),
                pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                status.clone(),
                if self.verbose { container.image.clone() } else { shortened(&container.image) },
            ]);
        }
        output::text(table)?;
        if self.verbose {
            for (container, _, _, stages) in &rows {
                output::line(format_args!("\n{}", container.id))?;
                if let Some(stages) = stages {
                    output::line(format_args!("  {}", stages_line(stages)))?;
                }
                let mut annotations: Vec<_> = container.annotations.iter().collect();
                annotations.sort();
                for (key, value) in annotations {
                    output::line(format_args!("  {key}={value}"))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The stages of a start, then the run.
fn stages_line(stages: &StartStages) -> String {
    let mut parts = vec![("plan", Some(stages.plan_us))];
    match stages.code {
        Some(CodeSource::Compiled) => parts.push(("compile", stages.code_us)),
        Some(CodeSource::Cached) => parts.push(("code from cache", stages.code_us)),
        None => {}
    }
    parts.extend([("container", stages.container_us), ("ready", stages.ready_us)]);
    let parts = parts.into_iter().filter_map(|(name, us)| Some(format!("{name} {}", time(us?))));
    let init = stages.init_us().map_or_else(|| "-".to_owned(), time);
    let mut line = format!("init {init}: {}", parts.collect::<Vec<_>>().join(", "));
    if let Some(us) = stages.run_us {
        line += &format!("; run {}", time(us));
    }
    line
}

fn time(us: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a time for people")]
    hops::time(us as f64)
}

/// An image's name that fits into a table.
fn shortened(image: &str) -> String {
    const SHOWN: usize = 48;
    match image.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &image[..end]),
        None => image.to_owned(),
    }
}
