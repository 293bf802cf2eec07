//! `cwasi explain CALLER CALLEE`: which mode a call would take now, and why not the others. The runtime's own
//! selection decides, over the facts that a shim would collect.
//!
//! - `caller`: who calls; `named`: the container that its name means; `planned`: images and containers of a workflow
//!   file that is not deployed.

pub(super) mod caller;
mod named;
mod planned;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use cwasi_config::FunctionSpec;
use cwasi_coordinator::registry::{Record, Registry};
use cwasi_coordinator::selection::{EmbeddingState, Facts, Remote, Selection, callee_of, select};
use cwasi_host::caller::CALLER_NAME;
use cwasi_host::network::{FunctionLocations, Network};
use cwasi_wire::control::ModeHint;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use serde_json::json;

use self::caller::{Caller, EmbeddedCode, Inside};
use self::named::CallerName;
use super::activation::Activation;
use crate::arguments::{Global, NodeArguments};
use crate::deployment::Node;
use crate::failure::{Exit, Failure};
use crate::output;
use cwasi_workflow::{Additions, Workflow};

/// Longest wait for Redis.
const REDIS_MAX: Duration = Duration::from_secs(5);

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Explain {
    /// The calling function, NAMESPACE/FUNCTION or its container; `gateway` for `cwasi invoke` and `cwasi gateway`
    pub caller: String,
    /// The called function, or NAMESPACE/FUNCTION
    pub callee: String,
    /// The caller is a function of this workflow file, which need not be deployed
    #[arg(short, long, conflicts_with = "kube", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The caller is a process of this host, as in `cwasi invoke --as CALLER`
    #[arg(long, conflicts_with = "file")]
    pub host: bool,
    /// Kubernetes namespace of the caller
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        conflicts_with_all = ["kube", "file"],
        value_name = "NAME"
    )]
    pub pod_namespace: String,
    #[command(flatten)]
    pub on: NodeArguments,
}

/// What is known of other hosts.
enum Elsewhere {
    NotConfigured,
    Away(String),
    Vanished(Duration),
    Known(Vec<Location>),
    /// No instance; one is started when it is called.
    OnDemand(Location),
}

/// How calls travel to the nodes, by their names.
type Paths = BTreeMap<String, String>;

/// One mode, and its verdict.
struct Verdict {
    mode: &'static str,
    serves: bool,
    why: String,
}

impl Explain {
    /// Prints the decision; exit code 1 if no mode can serve.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let planned = self.planned()?;
        let node = Node::connect(global).await?;
        let caller = self.caller(&node, planned.as_ref(), global).await?;
        let callee = callee_of(&caller.identity, &self.callee);
        let registry = Registry::new(&node.config.state_dir);
        let local = registry.instances(&callee)?;
        let beside = registry.functions_beside(&callee)?;
        let inside = caller.inside(&node, &callee).await?;
        let (elsewhere, paths) = elsewhere(&node, &registry, &callee).await?;
        let facts = Facts {
            caller: &caller.identity,
            callee: &callee,
            group: &caller.group,
            hint: caller.spec.mode,
            embedding: match &inside {
                Inside::No => EmbeddingState::No,
                Inside::Loaded(_) => EmbeddingState::Loaded,
                Inside::Untrusted(reason) => EmbeddingState::Untrusted { reason },
            },
            local: &local,
            remote: match &elsewhere {
                Elsewhere::NotConfigured => Remote::NotConfigured,
                Elsewhere::Away(reason) => Remote::Away { reason },
                Elsewhere::Vanished(since) => Remote::Vanished { since: *since },
                Elsewhere::Known(locations) => Remote::Known(locations),
                Elsewhere::OnDemand(announcement) => Remote::OnDemand(announcement),
            },
            avoid: &[],
            held: &[],
            nearer: false,
            beside: &beside,
            rotation: 0,
        };
        let code = match &inside {
            Inside::Loaded(code) => Some(code),
            Inside::No | Inside::Untrusted(_) => None,
        };
        let of_file = planned.as_ref().filter(|_| caller.identity.same_scope(&callee));
        let workers_max = node.config.workers_max;
        let of_callee = match of_file.and_then(|(_, workflow)| workflow.function(&callee.function))
        {
            Some(function) => {
                let pairs = function.annotations.iter().map(|(key, value)| (&**key, &**value));
                let spec = FunctionSpec::parse(pairs)?;
                Activation::of_function(function)?.with_workers(&spec, workers_max)
            }
            None => local.first().map_or_else(Activation::default, Activation::of_instance),
        };
        let of_caller = caller.activation.clone().with_workers(&caller.spec, workers_max);
        let activations = [&of_caller, &of_callee];
        print(&facts, &paths, (&caller.container, activations), code, global.json)
    }

    /// The workflow of the command line's file.
    fn planned(&self) -> Result<Option<(&Path, Workflow)>, Failure> {
        let load = |file: &PathBuf| Workflow::load(file, &Additions::default());
        let workflow = self.file.as_ref().map(load).transpose()?;
        Ok(self.file.as_deref().zip(workflow))
    }

    async fn caller(
        &self,
        node: &Node,
        planned: Option<&(&Path, Workflow)>,
        global: &Global,
    ) -> Result<Caller, Failure> {
        if let Some((file, workflow)) = planned {
            return Caller::of_file((file, workflow), &self.caller, global);
        }
        let named = CallerName::parse(&self.caller, &self.pod_namespace)?;
        let CallerName { name, pod_namespace } = named;
        if !self.host {
            let containers = node.containerd.containers().await?;
            if let Some(container) = named.container(&containers, &node.containerd).await? {
                return Caller::container(container, global);
            }
        }
        if self.host || name == CALLER_NAME {
            return Caller::host(name, pod_namespace, global);
        }
        let within = match pod_namespace {
            "" => String::new(),
            namespace => format!(" in pod namespace {namespace}"),
        };
        let text = format!(
            "namespace {} has no function {name}{within}; name its workflow with --file FILE, or use --host for a \
             process of this host",
            global.namespace
        );
        Err(Failure::text(Exit::Missing, text))
    }
}

fn print(
    facts: &Facts<'_>,
    paths: &Paths,
    (container, [of_caller, of_callee]): (&str, [&Activation; 2]),
    code: Option<&EmbeddedCode>,
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let decision = select(facts);
    let (mode, reason) = outcome(&decision);
    let verdicts = [ModeHint::Embedded, ModeHint::Local, ModeHint::Networked]
        .map(|hint| verdict(facts, paths, hint));
    if as_json {
        let modes: Vec<_> = verdicts
            .iter()
            .map(|verdict| json!({ "mode": verdict.mode, "serves": verdict.serves, "why": verdict.why }))
            .collect();
        let document = json!({
            "caller": facts.caller.to_string(), "callee": facts.callee.to_string(), "container": container,
            "hint": facts.hint.name(), "mode": mode, "reason": reason, "modes": modes, "embedded": code,
            "activation": { "caller": of_caller, "callee": of_callee },
        });
        output::json(&document)?;
    } else {
        let (caller, callee) = (&facts.caller.function, &facts.callee.function);
        match mode {
            Some(mode) => output::line(format_args!("{caller} -> {callee}: {mode} ({reason})"))?,
            None => output::line(format_args!("{caller} -> {callee}: no route"))?,
        }
        for Verdict { mode, serves, why } in &verdicts {
            let serves = if *serves { "yes" } else { "no" };
            output::line(format_args!("  {mode:<10} {serves:<4} {why}"))?;
        }
        if let Some(EmbeddedCode { image, image_digest, module_digest, trust }) = code {
            output::line(format_args!("  embedded image   {image}@{image_digest} ({trust})"))?;
            output::line(format_args!("  embedded module  {module_digest}"))?;
        }
        if facts.hint != ModeHint::Auto {
            let hint = facts.hint.name();
            output::line(format_args!("  cwasi.mode={hint} of {caller} allows no other mode"))?;
        }
        for (function, activation) in [(caller, of_caller), (callee, of_callee)] {
            for (what, value) in activation.lines() {
                output::line(format_args!("  {what} of {function}: {value}"))?;
            }
        }
    }
    Ok(if mode.is_some() { ExitCode::SUCCESS } else { Exit::Findings.into() })
}

fn outcome(selection: &Selection<'_>) -> (Option<&'static str>, String) {
    match selection {
        Selection::Embedded { reason } => (Some("embedded"), reason.clone()),
        Selection::Local { reason, .. } => (Some("local"), reason.clone()),
        Selection::Networked { reason, .. } => (Some("networked"), reason.clone()),
        Selection::NoOther { .. } => (None, String::new()),
        Selection::Unroutable(none) => (None, none.to_string()),
    }
}

/// Whether this mode could serve, whatever the caller's `cwasi.mode` and the other modes say.
fn verdict(facts: &Facts<'_>, paths: &Paths, hint: ModeHint) -> Verdict {
    let mode = hint.name();
    match select(&Facts { hint, ..*facts }) {
        Selection::Unroutable(none) => {
            let why = match hint {
                ModeHint::Embedded => none.embedded,
                ModeHint::Local => none.local,
                ModeHint::Networked | ModeHint::Auto => none.networked,
            };
            Verdict { mode, serves: false, why }
        }
        Selection::Local { candidates, reason, .. } => {
            let names: Vec<_> =
                candidates.iter().map(|record: &&Record| record.container.as_str()).collect();
            Verdict { mode, serves: true, why: format!("{reason}: {}", names.join(", ")) }
        }
        // An announcement names no node.
        Selection::Networked { candidates, reason }
            if candidates.iter().all(|it| it.node.is_empty()) =>
        {
            Verdict { mode, serves: true, why: reason }
        }
        Selection::Networked { candidates, .. } => {
            let nodes: BTreeSet<_> =
                candidates.iter().map(|location| location.node.as_str()).collect();
            let with_path = |node: &str| match paths.get(node) {
                Some(path) => format!("{node} ({path})"),
                None => node.to_owned(),
            };
            let nodes: Vec<_> = nodes.into_iter().map(with_path).collect();
            Verdict { mode, serves: true, why: format!("instances on {}", nodes.join(", ")) }
        }
        other => {
            let (_, why) = outcome(&other);
            Verdict { mode, serves: true, why }
        }
    }
}

async fn elsewhere(
    node: &Node,
    registry: &Registry,
    callee: &Identity,
) -> Result<(Elsewhere, Paths), Failure> {
    let mut paths = Paths::new();
    let Some(network) = Network::start(&node.config, registry)? else {
        return Ok((Elsewhere::NotConfigured, paths));
    };
    let found = match tokio::time::timeout(REDIS_MAX, network.locations(callee)).await {
        Ok(found) => found,
        Err(_elapsed) => {
            let reason = format!("Redis does not answer within {} s", REDIS_MAX.as_secs());
            return Ok((Elsewhere::Away(reason), paths));
        }
    };
    if let Ok(FunctionLocations::At(locations)) = &found {
        for location in locations {
            if !paths.contains_key(&location.node) {
                let path = match network.probe(location).await {
                    Ok(()) => "directly".to_owned(),
                    Err(why) => network.instead(&why),
                };
                paths.insert(location.node.clone(), path);
            }
        }
    }
    let elsewhere = match found {
        Ok(FunctionLocations::At(locations)) => Elsewhere::Known(locations),
        Ok(FunctionLocations::OnDemand(announcement)) => Elsewhere::OnDemand(announcement),
        Ok(FunctionLocations::Vanished(since)) => Elsewhere::Vanished(since),
        Ok(FunctionLocations::Never) => Elsewhere::Known(Vec::new()),
        Err(error) => Elsewhere::Away(error.to_string()),
    };
    Ok((elsewhere, paths))
}
