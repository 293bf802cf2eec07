//! Announces the functions that are started on demand, in Redis, so that shims hold their calls. Only the leader does,
//! and only while KEDA is there: nothing else would start a pod.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_networked::{NetworkError, RedisLink, RedisSession, demand};
use cwasi_operator_api::names;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt as _};
use tracing::{debug, info, warn};

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

/// What of a Workflow was read: its uid, and all by which a plan differs.
type Version = (Option<String>, Option<i64>, Option<String>);

fn version(workflow: &Workflow) -> Version {
    let others = workflow.annotations().get(names::SCALED_BY_OTHERS).cloned();
    (workflow.uid(), workflow.metadata.generation, others)
}

#[derive(Debug, Default)]
struct Announcer {
    /// Functions of each Workflow, as it was read last.
    plans: HashMap<ObjectRef<Workflow>, (Version, Vec<Location>)>,
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
            self.look_for_keda(client).await;
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
        let mut refused = None;
        for (function, location) in wanted {
            let known = self.announced.get(&function);
            if is_due || known != Some(&location) {
                match demand::announce(session, &location).await {
                    Ok(()) => {}
                    // The others may be kept, which needs no memory.
                    Err(error @ NetworkError::OutOfMemory { .. }) => {
                        refused = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                if known.is_none() {
                    info!(%function, "is started on demand");
                }
                self.announced.insert(function, location);
            }
        }
        if is_due {
            self.repeated = Some((Instant::now(), session.epoch));
        }
        refused.map_or(Ok(()), Err)
    }

    /// Only the API's word that it does not know KEDA's kinds says that KEDA is away: withdrawn calls fail.
    async fn look_for_keda(&mut self, client: &Client) {
        match client.list_api_group_resources(KEDA).await {
            Ok(_) => self.has_keda = true,
            Err(kube::Error::Api(status)) if status.code == 404 => self.has_keda = false,
            Err(error) => debug!(%error, "it is not known whether KEDA is there"),
        }
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
            let version = version(workflow);
            let before = self.plans.get(&reference);
            if before.is_some_and(|(known, _)| *known == version) {
                continue;
            }
            let locations = match Plan::read(workflow) {
                Ok(plan) => plan.functions.into_iter().filter_map(|it| it.announcement).collect(),
                Err(_) => before
                    .filter(|(known, _)| known.0 == version.0)
                    .map(|(_, locations)| locations.clone())
                    .unwrap_or_default(),
            };
            self.plans.insert(reference, (version, locations));
        }
    }
}

#[cfg(test)]
mod tests {
    use cwasi_fake_api::FakeApi;
    use hyper::StatusCode;
    use serde_json::json;

    use super::*;

    fn workflow(uid: &str, generation: i64, others: &str, min: u32) -> Arc<Workflow> {
        let workflow = json!({
            "apiVersion": "cwasi.dev/v1alpha1",
            "kind": "Workflow",
            "metadata": {
                "name": "w", "namespace": "n", "uid": uid, "generation": generation,
                "annotations": { names::SCALED_BY_OTHERS: others },
            },
            "spec": { "functions": {
                "f": { "image": "i:1", "role": "secondary", "scale": { "min": min, "max": 2 } },
            } },
        });
        Arc::new(serde_json::from_value(workflow).unwrap())
    }

    #[tokio::test]
    async fn an_api_that_does_not_answer_does_not_take_keda_away() {
        const PATH: &str = "/apis/keda.sh/v1alpha1";
        let (api, mut announcer) = (FakeApi::default(), Announcer::default());
        let client = api.client();
        announcer.look_for_keda(&client).await;
        assert!(!announcer.has_keda);
        api.put(PATH, json!({ "kind": "APIResourceList", "groupVersion": KEDA, "resources": [] }));
        announcer.look_for_keda(&client).await;
        assert!(announcer.has_keda);
        api.deny(PATH, StatusCode::SERVICE_UNAVAILABLE, "no time");
        announcer.look_for_keda(&client).await;
        assert!(announcer.has_keda, "as before");
        api.deny(PATH, StatusCode::NOT_FOUND, "no such group");
        announcer.look_for_keda(&client).await;
        assert!(!announcer.has_keda);
    }

    #[test]
    fn a_workflow_is_read_again_when_its_annotation_changes_or_when_it_is_another_one() {
        let mut announcer = Announcer::default();
        let mut read = |workflow: Arc<Workflow>| {
            announcer.read(&[workflow]);
            announcer.locations().count()
        };
        assert_eq!(read(workflow("u1", 1, "no-such-function", 0)), 0, "it has a fault");
        assert_eq!(read(workflow("u1", 1, "f", 0)), 1, "repaired");
        assert_eq!(read(workflow("u1", 1, "no-such-function", 0)), 1, "a fault changes nothing");
        assert_eq!(read(workflow("u2", 1, "no-such-function", 0)), 0, "of another one, either");
        assert_eq!(read(workflow("u3", 1, "", 0)), 1);
        assert_eq!(read(workflow("u4", 1, "", 1)), 0, "made again with another `scale`");
    }
}
