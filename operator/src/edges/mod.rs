//! How calls move: reads the counters of all nodes, and writes into each Workflow's status what its edges moved. Runs in
//! the leader, once for all Workflows.
//!
//! - [`exposition`]: lines of the nodes' metrics; [`scrape`]: asks for them; [`window`]: what moved in the last minutes.
//! - [`rounding`]: numbers that stay while they are about right; [`advice`]: which edges move too much;
//!   [`status`]: what the status says.
//!
//! Invariants: a status is written once a [`PUBLISH_PERIOD`] at most, and only when what it says changed. Its fields are
//! those of a field manager of its own, and reconciling never writes them. What it cannot know yet it leaves as it was.

pub mod advice;
pub mod exposition;
pub mod rounding;
pub mod scrape;
pub mod status;
pub mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use self::scrape::{Answer, ask_all, targets};
use self::status::{Measured, Measurement, State, describe};
use self::window::Window;
use crate::endpoints::Metrics;
use crate::objects::names;
use crate::publish;
use crate::resource::Workflow;

/// Pause between two questions to a node.
const SCRAPE_PERIOD: Duration = Duration::from_secs(15);
/// Shortest time between two writes of a status.
pub const PUBLISH_PERIOD: Duration = Duration::from_secs(60);
/// Numbers of less time say little.
const COVERED_MIN: Duration = Duration::from_secs(45);

/// Reads the nodes' counters.
pub struct Edges {
    client: Client,
    /// Where the pods with the metrics are: the operator's own namespace.
    namespace: String,
    metrics: Metrics,
    window: Window,
    state: Option<State>,
    /// Nodes that do not answer.
    silent: BTreeSet<String>,
}

impl Edges {
    #[must_use]
    pub fn new(client: Client, namespace: &str, metrics: Metrics) -> Self {
        let (namespace, window) = (namespace.to_owned(), Window::default());
        Self { client, namespace, metrics, window, state: None, silent: BTreeSet::new() }
    }

    /// Measures until it is dropped. `workflows` are those whose status is written.
    pub async fn run(mut self, workflows: Store<Workflow>) {
        let mut ticks = interval(SCRAPE_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut published = Instant::now();
        loop {
            ticks.tick().await;
            self.scrape(Instant::now()).await;
            if published.elapsed() >= PUBLISH_PERIOD {
                published = Instant::now();
                self.publish(published, &workflows.state()).await;
            }
        }
    }

    /// Asks all nodes once.
    pub async fn scrape(&mut self, now: Instant) {
        let targets = match targets(&self.client, &self.namespace).await {
            Ok(targets) => targets,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.state = Some(State::Forbidden(status.message.clone()));
                return;
            }
            // The next time, then: what was measured stays.
            Err(error) => {
                warn!(%error, "pods with metrics were not found");
                return;
            }
        };
        let answers = ask_all(targets).await;
        let failure = self.note(&answers);
        let counters: Vec<_> = answers
            .into_iter()
            .filter_map(|(target, answer)| Some((target.node, answer.ok()?)))
            .collect();
        let has_answers = !counters.is_empty();
        if !self.window.add(now, counters) {
            warn!(
                maximum = window::SERIES_MAX,
                "the nodes count more edges than the operator keeps"
            );
        }
        self.state = match failure {
            _ if self.window.covered(now) > Duration::ZERO => Some(State::Measured),
            // The first numbers: only the next ones say what moves.
            _ if has_answers => None,
            Some(failure) => Some(State::Unreachable(failure)),
            None => Some(State::NoMetrics),
        };
    }

    /// Logs the nodes that fell silent or answer again; returns one of the failures.
    fn note(&mut self, answers: &[Answer]) -> Option<String> {
        let mut failure = None;
        let mut silent = BTreeSet::new();
        for (target, answer) in answers {
            self.metrics.scraped(answer.is_ok());
            let node = &target.node;
            let Err(error) = answer else {
                if self.silent.contains(node) {
                    info!(node, "metrics of a node are there again");
                }
                continue;
            };
            let source =
                std::error::Error::source(error).map(|it| format!(": {it}")).unwrap_or_default();
            if !self.silent.contains(node) {
                warn!(node, "metrics of a node are missing: {error}{source}");
            }
            silent.insert(node.clone());
            failure.get_or_insert_with(|| format!("{error}{source}"));
        }
        self.silent = silent;
        failure
    }

    /// Writes the status of each Workflow of which it says something else now.
    pub async fn publish(&self, now: Instant, workflows: &[Arc<Workflow>]) {
        let Some(state) = self.state.clone() else { return };
        let covered = self.window.covered(now);
        if state == State::Measured && covered < COVERED_MIN {
            return;
        }
        let measurement = Measurement { state, moved: self.window.moved(), covered };
        for workflow in workflows {
            if workflow.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let previous = Measured::of(&workflow.status.clone().unwrap_or_default());
            let now = describe(workflow, &measurement);
            if now == previous {
                continue;
            }
            let fields = json!({
                "local": now.local, "edges": now.edges, "conditions": now.conditions,
            });
            let manager = names::EDGES_MANAGER;
            let change = (previous.conditions.as_slice(), now.conditions.as_slice());
            if let Err(error) =
                publish::write(&self.client, workflow, manager, &fields, change).await
            {
                warn!(workflow = workflow.name_any(), %error, "the edges were not written");
            }
        }
    }
}
