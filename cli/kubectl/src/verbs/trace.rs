//! `cwasi trace --kube`: the traces of all nodes. Each node has the spans of its own functions; together they are one
//! tree.

use std::process::ExitCode;

use cwasi_wire::trace::RecordedSpan;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::connect;
use super::on_node::{captured, said, words};
use crate::cluster::Cluster;
use crate::cluster::node::NodePod;
use cwasi_cli::arguments::Global;
use cwasi_cli::commands::trace::{ShowTrace, list, one, prefix};
use cwasi_cli::failure::{Exit, Failure};
use cwasi_cli::output;
use cwasi_cli::traces::summary::{Summary, merged};
use cwasi_cli::traces::{LAST, Trace, assembled};

/// Nodes that are asked at a time.
const NODES_AT_A_TIME: usize = 8;
/// Longest answer of a node in bytes.
const ANSWER_MAX: usize = 64 << 20;

/// Where traces were looked for.
const PLACE: &str = "on a node of this cluster";

/// What a node prints of a trace.
#[derive(Deserialize)]
struct NodeTrace {
    spans: Vec<RecordedSpan>,
}

/// Prints the list or one trace.
pub async fn run(trace: &ShowTrace, global: &Global) -> Result<ExitCode, Failure> {
    let id = trace.id.as_deref().map(prefix).transpose()?;
    let cluster = connect(&trace.on.cluster, global).await?;
    let nodes = Nodes { cluster: &cluster, system_namespace: &trace.on.system_namespace, global };
    match id {
        None => list(&nodes.summaries(trace.limit).await?, global, PLACE)?,
        Some(id) => {
            let found = nodes.find(&id).await?;
            let found = one(&found.iter().collect::<Vec<_>>(), &id, PLACE)?;
            trace.print(found, global, "no node has")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Nodes, and the verb for them.
struct Nodes<'a> {
    cluster: &'a Cluster,
    system_namespace: &'a str,
    global: &'a Global,
}

impl Nodes<'_> {
    /// The newest traces, at most `limit`.
    ///
    /// # Errors
    /// When no node answers.
    async fn summaries(&self, limit: usize) -> Result<Vec<Summary>, Failure> {
        let limit_text = limit.to_string();
        let answers: Vec<Vec<Summary>> = self.ask(&["trace", "--limit", &limit_text]).await?;
        let mut all = merged(answers.into_iter().flatten());
        all.truncate(limit);
        Ok(all)
    }

    /// The traces whose id begins with `id`, or the newest one for [`LAST`].
    ///
    /// # Errors
    /// When no node answers, or more than one trace of a node begins so.
    async fn find(&self, id: &str) -> Result<Vec<Trace>, Failure> {
        let newest;
        let id = if id == LAST {
            let Some(summary) = self.summaries(1).await?.into_iter().next() else {
                return Ok(Vec::new());
            };
            newest = summary.trace.to_string();
            newest.as_str()
        } else {
            id
        };
        let answers: Vec<NodeTrace> = self.ask(&["trace", id]).await?;
        Ok(assembled(answers.into_iter().flat_map(|it| it.spans)))
    }

    /// What each node prints; without those that know no such trace.
    async fn ask<T: DeserializeOwned>(&self, verb: &[&str]) -> Result<Vec<T>, Failure> {
        let nodes = self.cluster.node_pods(self.system_namespace).await?;
        let global = Global { json: true, ..self.global.clone() };
        let words = words(verb.iter().copied(), &global);
        let asked = nodes.values().map(|node| self.answer(node, &words));
        let answers: Vec<_> =
            futures_util::stream::iter(asked).buffered(NODES_AT_A_TIME).collect().await;
        let (mut found, mut failed) = (Vec::new(), None);
        let all = answers.len();
        let mut failures = 0;
        for (node, answer) in nodes.keys().zip(answers) {
            match answer {
                Ok(answer) => found.extend(answer),
                // Wrong for all nodes, such as a prefix that several traces of one have.
                Err(failure) if failure.exit() == Exit::Usage => return Err(failure),
                Err(failure) => {
                    output::note(format_args!("cwasi: node {node} is left out: {failure}"));
                    failures += 1;
                    failed = Some(failure);
                }
            }
        }
        match failed {
            Some(failure) if failures == all => Err(failure),
            _ => Ok(found),
        }
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        node: &NodePod,
        words: &[String],
    ) -> Result<Option<T>, Failure> {
        let (stdout, ended) = captured(self.cluster, node, words, ANSWER_MAX).await?;
        match ended.code {
            0 => Ok(Some(serde_json::from_slice(&stdout)?)),
            code if code == Exit::Missing as u8 => Ok(None),
            code if code == Exit::Usage as u8 => Err(Failure::text(Exit::Usage, said(&ended))),
            _ => Err(Failure::text(Exit::Failed, said(&ended))),
        }
    }
}
