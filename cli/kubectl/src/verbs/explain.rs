//! `cwasi explain --kube`: the caller's node says which mode a call takes; the Workflows say what else runs the two
//! functions, which a node does not know.

use std::process::ExitCode;

use cwasi_host::caller::CALLER_NAME;
use serde_json::{Map, Value, json};

use super::{calling_node, connect, on_node};
use crate::cluster::{Cluster, workflows};
use cwasi_cli::arguments::Global;
use cwasi_cli::cluster::ClusterError;
use cwasi_cli::commands::activation::Activation;
use cwasi_cli::commands::explain::Explain;
use cwasi_cli::failure::{Exit, Failure};
use cwasi_cli::interrupt::Interrupt;
use cwasi_cli::output;

/// Longest explanation of a node, in bytes.
const EXPLANATION_MAX: usize = 1 << 20;

/// What the Workflows say of the two functions.
struct Known<'a> {
    /// Its key in the JSON document, its name, and what is known.
    functions: [(&'static str, &'a str, Activation); 2],
}

/// Asks the caller's node. A process of a host calls from that of the callee.
pub async fn run(explain: &Explain, global: &Global) -> Result<ExitCode, Failure> {
    let cluster = connect(&explain.on.cluster, global).await?;
    let of_host = explain.host || explain.caller == CALLER_NAME;
    let system = &explain.on.system_namespace;
    let (called_from, node, container, workflow) = if of_host {
        let (node, workflow) = calling_node(&cluster, system, &explain.callee).await?;
        (&explain.callee, node, explain.caller.clone(), workflow)
    } else {
        let function = cluster.function(&explain.caller).await?;
        let node = cluster.node_pod(system, &function.node).await?;
        (&explain.caller, node, function.container, function.workflow)
    };
    // Where its pod is, and where names without a namespace are looked up.
    let home = called_from.rsplit_once('/').map_or(&*cluster.namespace, |(it, _)| it);
    let namespace = format!("--pod-namespace={}", cluster.namespace);
    let mut words = vec!["explain", &container, explain.callee.as_str()];
    if of_host {
        words.extend(["--host", &namespace]);
    }
    let words = on_node::words(words, global);
    let asking = on_node::captured(&cluster, &node, &words, EXPLANATION_MAX);
    let (stdout, ended) = Interrupt::new()?.or(asking).await?;
    if ended.code == 0 || ended.code == Exit::Findings as u8 {
        let from = (home, workflow.as_deref());
        let of_caller = match of_host {
            true => Activation::default(),
            false => of_function(&cluster, from, &explain.caller).await,
        };
        let of_callee = of_function(&cluster, from, &explain.callee).await;
        Known {
            functions: [
                ("caller", name(&explain.caller), of_caller),
                ("callee", name(&explain.callee), of_callee),
            ],
        }
        .print(&stdout)?;
    } else {
        output::bytes(&stdout)?;
    }
    Ok(on_node::report(&node, &ended))
}

/// A function's name without its namespace.
fn name(target: &str) -> &str {
    target.rsplit_once('/').map_or(target, |(_, name)| name)
}

/// What a Workflow of the function's namespace says of it: the one of its caller's pod, or the first one that has it.
/// `from`: the caller's namespace, and the Workflow of its pod.
async fn of_function(cluster: &Cluster, from: (&str, Option<&str>), target: &str) -> Activation {
    match found(cluster, from, target).await {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            output::note(format_args!(
                "cwasi: schedule and scale of {target} are not known: {error}"
            ));
            Activation::default()
        }
    }
}

async fn found(
    cluster: &Cluster,
    (home, preferred): (&str, Option<&str>),
    target: &str,
) -> Result<Option<Activation>, String> {
    let namespace = target.rsplit_once('/').map_or(home, |(namespace, _)| namespace);
    let preferred = preferred.filter(|_| namespace == home);
    let mut all = match cluster.workflows_of(namespace).await {
        Ok(all) => all,
        // Pods need no Workflow.
        Err(ClusterError::NoDefinition) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    all.retain(|it| {
        workflows::functions_of_spec(it).iter().any(|function| function == name(target))
    });
    let of_pod = all.iter().find(|it| it.metadata.name.as_deref() == preferred);
    let Some(workflow) = of_pod.or(all.first()) else { return Ok(None) };
    let file = workflows::file(workflow)?;
    let function = file.function(name(target)).map(Activation::of_function);
    function.transpose().map_err(|failure| failure.to_string())
}

impl Known<'_> {
    /// Prints a node's explanation with what it lacks.
    fn print(&self, stdout: &[u8]) -> Result<(), Failure> {
        match serde_json::from_slice(stdout) {
            Ok(Value::Object(mut document)) => {
                self.functions.iter().for_each(|(key, _, known)| fill(&mut document, key, known));
                output::json(&document)
            }
            _ => {
                output::bytes(stdout)?;
                let said = String::from_utf8_lossy(stdout);
                for line in self.lines().filter(|line| !said.lines().any(|it| it == line)) {
                    output::line(line)?;
                }
                Ok(())
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.functions.iter().flat_map(|(_, name, known)| {
            let lines = known.lines().into_iter();
            lines.map(move |(what, value)| format!("  {what} of {name}: {value}"))
        })
    }
}

/// Fills what a node's document does not say of a function.
fn fill(document: &mut Map<String, Value>, key: &str, known: &Activation) {
    let activations = document.entry("activation").or_insert_with(|| json!({}));
    let Some(shown) = activations.as_object_mut().map(|all| all.entry(key).or_insert(json!({})))
    else {
        return;
    };
    let (Some(shown), Value::Object(known)) = (shown.as_object_mut(), json!(known)) else { return };
    for (field, value) in known {
        let said = shown.entry(field).or_insert(Value::Null);
        if said.is_null() || said.as_array().is_some_and(Vec::is_empty) {
            *said = value;
        }
    }
}
