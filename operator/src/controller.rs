//! When Workflows are reconciled: when they change, when something of theirs changes, and after a while.
//!
//! Invariant: reconciling begins when all kinds were listed once, so it never takes what it has not seen for missing.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, SelectAll};
use futures_util::{StreamExt as _, TryStreamExt as _};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Config, Predicate as _};
use kube::runtime::{PredicateConfig, WatchStreamExt as _, applier, predicates, watcher};
use kube::{Api, Client, ResourceExt as _};
use tracing::{debug, info, warn};

use crate::cache::{Touched, watches};
use crate::context::Context;
use crate::reconcile::{reconcile, retry};
use crate::resource::Workflow;

/// Workflows that are reconciled at a time.
const CONCURRENCY: u16 = 4;

/// Reconciles the Workflows of a namespace, or of all.
pub struct Controller {
    workflows: BoxStream<'static, watcher::Result<Workflow>>,
    touched: SelectAll<BoxStream<'static, Touched>>,
    store: Store<Workflow>,
    context: Arc<Context>,
}

impl Controller {
    #[must_use]
    pub fn new(client: &Client, namespace: Option<&str>, context: Context) -> Self {
        let api: Api<Workflow> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        let (store, writer) = reflector::store();
        // The operator's own writes of the status are no changes. An annotation is one: it asks for a look.
        let changes = predicates::generation.combine(predicates::annotations);
        let workflows = watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|workflow| workflow.managed_fields_mut().clear())
            .reflect(writer)
            .applied_objects()
            .predicate_filter(changes, PredicateConfig::default())
            .boxed();
        let touched = watches::all(client, namespace, &context.cache);
        Self { workflows, touched, store, context: Arc::new(context) }
    }

    /// All Workflows.
    #[must_use]
    pub fn store(&self) -> Store<Workflow> {
        self.store.clone()
    }

    /// Works until it is dropped.
    pub async fn run(self) {
        let Self { workflows, mut touched, store, context } = self;
        let mut workflows = workflows
            .inspect_err(|error| warn!(%error, "Workflows cannot be watched; trying again"))
            .map_ok(|workflow| ObjectRef::from_obj(&workflow));
        // Workflows are read meanwhile: announcements of their functions go on, whatever kind is not listed.
        while !context.cache.is_ready() {
            let is_open = tokio::select! {
                touched = touched.next() => touched.is_some(),
                workflow = workflows.next() => workflow.is_some(),
            };
            if !is_open {
                return;
            }
        }
        info!("all kinds are listed");
        let (listed, all) = (store.clone(), store.clone());
        // What was read meanwhile is in the store when its first list is complete.
        let read = stream::once(async move {
            let _gone = listed.wait_until_ready().await;
            stream::iter(references(&listed))
        });
        let touched = touched.flat_map(move |touched| {
            stream::iter(match touched {
                Touched::Some(workflows) => workflows,
                Touched::All => references(&all),
            })
        });
        let known = stream::select(read.flatten(), touched).map(Ok);
        let queue = stream::select(workflows, known);
        let config = Config::default().concurrency(CONCURRENCY);
        let once = |workflow, context| Box::pin(reconcile(workflow, context));
        let reconciled = applier(once, retry, context, store, queue, config);
        reconciled
            .for_each(|reconciled| async move {
                match reconciled {
                    Ok((workflow, _)) => debug!(%workflow, "reconciled"),
                    Err(error) => debug!(%error, "not reconciled"),
                }
            })
            .await;
    }
}

fn references(store: &Store<Workflow>) -> Vec<ObjectRef<Workflow>> {
    store.state().iter().map(|it| ObjectRef::from_obj(&**it)).collect()
}
