//! Announces the functions that are started on demand, in Redis, so that shims hold their calls. Only the leader does,
//! and only while KEDA is there: nothing else would start a pod.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_networked::{NetworkError, RedisLink, RedisSession, demand};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use tracing::{info, warn};

use crate::plan::Plan;
use crate::resource::Workflow;

/// How often changed Workflows are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// API of KEDA.
const KEDA: &str = "keda.sh/v1alpha1";

/// Announces the functions of all Workflows, again and again. Never ends.
pub async fn announce(client: Client, link: RedisLink, workflows: Store<Workflow>) {
    let mut announcer = Announcer::default();
    loop {
        if let Ok(session) = link.session_now()
            && let Err(error) = announcer.update(&client, &session, &workflows.state()).await
        {
            warn!(%error, "functions that are started on demand are not announced; trying again");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[derive(Debug, Default)]
struct Announcer {
    /// Functions of each Workflow, and its generation when it was read.
    plans: HashMap<ObjectRef<Workflow>, (Option<i64>, Vec<Location>)>,
    announced: HashMap<Identity, Location>,
    /// When all of it was announced last, and the session's number.
    repeated: Option<(Instant, u64)>,
    has_keda: bool,
}

impl Announcer {
    async fn update(
        &mut self,
        client: &Client,
        session: &RedisSession,
        workflows: &[Arc<Workflow>],
    ) -> Result<(), NetworkError> {
        let is_due = self.repeated.is_none_or(|(at, epoch)| {
            at.elapsed() >= demand::ANNOUNCE_EVERY || epoch != session.epoch
        });
        self.read(workflows);
        let waits_for_keda = !self.has_keda && self.locations().next().is_some();
        if is_due || waits_for_keda {
            self.has_keda = client.list_api_group_resources(KEDA).await.is_ok();
        }
        let wanted: HashMap<Identity, Location> = match self.has_keda {
            true => self.locations().map(|it| (it.identity.clone(), it.clone())).collect(),
            false => HashMap::new(),
        };
        let gone: Vec<_> =
            self.announced.keys().filter(|it| !wanted.contains_key(*it)).cloned().collect();
        for function in gone {
            demand::withdraw(session, &function).await?;
            self.announced.remove(&function);
            info!(%function, "is no longer started on demand");
        }
        for (function, location) in wanted {
            let known = self.announced.get(&function);
            if is_due || known != Some(&location) {
                demand::announce(session, &location).await?;
                if known.is_none() {
                    info!(%function, "is started on demand");
                }
                self.announced.insert(function, location);
            }
        }
        if is_due {
            self.repeated = Some((Instant::now(), session.epoch));
        }
        Ok(())
    }

    fn locations(&self) -> impl Iterator<Item = &Location> {
        self.plans.values().flat_map(|(_, locations)| locations)
    }

    /// Reads Workflows that have changed. One that has faults changes nothing: its pods and autoscalers stay, too.
    fn read(&mut self, workflows: &[Arc<Workflow>]) {
        let references: HashMap<_, _> =
            workflows.iter().map(|it| (ObjectRef::from_obj(&**it), it)).collect();
        self.plans.retain(|reference, _| references.contains_key(reference));
        for (reference, workflow) in references {
            let generation = workflow.metadata.generation;
            if self.plans.get(&reference).is_some_and(|(known, _)| *known == generation) {
                continue;
            }
            let locations = match Plan::read(workflow) {
                Ok(plan) => plan.functions.into_iter().filter_map(|it| it.announcement).collect(),
                Err(_) => self.plans.remove(&reference).map(|it| it.1).unwrap_or_default(),
            };
            self.plans.insert(reference, (generation, locations));
        }
    }
}
