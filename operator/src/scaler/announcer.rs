//! Announces the functions that are started on demand, in Redis, so that shims hold their calls. Only the leader does,
//! and only while KEDA is there: nothing else would start a pod.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_networked::{NetworkError, RedisLink, RedisSession, demand};
use cwasi_operator_api::names;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt as _};
use tracing::{debug, info, warn};

use crate::plan::{Plan, identity};
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
            && let Err(error) =
                announcer.update(&client, &session, &workflows.state(), Instant::now()).await
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

/// A Workflow as it was read last.
#[derive(Debug)]
struct Known {
    version: Version,
    /// Functions that can be called.
    callable: HashSet<Identity>,
    /// Those of them that are started on demand.
    on_demand: Vec<Location>,
    /// True for one that had faults whenever it was read: which functions are on demand is not known.
    is_unread: bool,
}

#[derive(Debug, Default)]
struct Announcer {
    workflows: HashMap<ObjectRef<Workflow>, Known>,
    /// Announced functions; `None`: not again, so that the announcement expires.
    announced: HashMap<Identity, Option<Location>>,
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
        now: Instant,
    ) -> Result<(), NetworkError> {
        let is_due = self.is_due(now, session.epoch);
        self.read(workflows);
        let waits_for_keda = !self.has_keda && self.locations().next().is_some();
        if is_due || waits_for_keda {
            self.look_for_keda(client).await;
        }
        let wanted: HashMap<Identity, Location> = match self.has_keda {
            true => self.locations().map(|it| (it.identity.clone(), it.clone())).collect(),
            false => HashMap::new(),
        };
        self.end(session, &wanted).await?;
        if is_due {
            self.keep_unread(session).await?;
        }
        let mut refused = None;
        for (function, location) in wanted {
            let known = self.announced.get(&function).and_then(Option::as_ref);
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
                self.announced.insert(function, Some(location));
            }
        }
        if is_due {
            self.repeated = Some((now, session.epoch));
        }
        refused.map_or(Ok(()), Err)
    }

    /// True if all of it is to be announced again: announcements expire, and another server has none.
    fn is_due(&self, now: Instant, epoch: u64) -> bool {
        let is_over = |(at, of): (Instant, u64)| now >= at + demand::ANNOUNCE_EVERY || of != epoch;
        self.repeated.is_none_or(is_over)
    }

    /// Ends announcements that are not wanted any more. Calls of a function that stays wait for the pods that it gets now,
    /// so its announcement expires; those of one that is gone fail at once.
    async fn end(
        &mut self,
        session: &RedisSession,
        wanted: &HashMap<Identity, Location>,
    ) -> Result<(), NetworkError> {
        let ending = self.announced.keys().filter(|it| !wanted.contains_key(*it));
        for function in ending.cloned().collect::<Vec<_>>() {
            if self.workflows.values().any(|it| it.callable.contains(&function)) {
                if self.announced.insert(function.clone(), None).flatten().is_some() {
                    info!(%function, "is no longer started on demand; its announcement expires");
                }
            } else {
                demand::withdraw(session, &function).await?;
                self.announced.remove(&function);
                info!(%function, "is gone, and so is its announcement");
            }
        }
        Ok(())
    }

    /// A Workflow that cannot be read runs on as it was before this process: its announcements, if there are some, stay.
    async fn keep_unread(&self, session: &RedisSession) -> Result<(), NetworkError> {
        for function in
            self.workflows.values().filter(|it| it.is_unread).flat_map(|it| &it.callable)
        {
            demand::keep(session, function).await?;
        }
        Ok(())
    }

    /// Only the API's word that it does not know KEDA's kinds says that KEDA is away: unannounced calls fail.
    async fn look_for_keda(&mut self, client: &Client) {
        match client.list_api_group_resources(KEDA).await {
            Ok(_) => self.has_keda = true,
            Err(kube::Error::Api(status)) if status.code == 404 => self.has_keda = false,
            Err(error) => debug!(%error, "it is not known whether KEDA is there"),
        }
    }

    fn locations(&self) -> impl Iterator<Item = &Location> {
        self.workflows.values().flat_map(|it| &it.on_demand)
    }

    /// Reads Workflows that have changed. One that has faults changes nothing: its pods and autoscalers stay, too.
    fn read(&mut self, workflows: &[Arc<Workflow>]) {
        let references: HashMap<_, _> =
            workflows.iter().map(|it| (ObjectRef::from_obj(&**it), it)).collect();
        self.workflows.retain(|reference, _| references.contains_key(reference));
        for (reference, workflow) in references {
            let version = version(workflow);
            let before = self.workflows.remove(&reference);
            let known = match before {
                Some(known) if known.version == version => known,
                before => match Plan::read(workflow) {
                    Ok(plan) => Known::of(plan, workflow, version),
                    Err(_) => match before {
                        Some(known) if known.version.0 == version.0 => Known { version, ..known },
                        // The pods of its predecessor are gone with that.
                        Some(_) => Known::nothing(version),
                        None => Known::unread(workflow, version),
                    },
                },
            };
            self.workflows.insert(reference, known);
        }
    }
}

impl Known {
    fn of(plan: Plan, workflow: &Workflow, version: Version) -> Self {
        let callable = plan.secondaries().map(|it| identity(workflow, &it.function.name)).collect();
        let on_demand = plan.functions.into_iter().filter_map(|it| it.announcement).collect();
        Self { version, callable, on_demand, is_unread: false }
    }

    fn nothing(version: Version) -> Self {
        let (callable, on_demand) = (HashSet::new(), Vec::new());
        Self { version, callable, on_demand, is_unread: false }
    }

    fn unread(workflow: &Workflow, version: Version) -> Self {
        let named = workflow.spec.fields.get("functions").and_then(|it| it.as_object());
        let names = named.into_iter().flat_map(|it| it.keys());
        let callable = names.map(|name| identity(workflow, name)).collect();
        Self { version, callable, on_demand: Vec::new(), is_unread: true }
    }
}

#[cfg(test)]
mod tests {
    use cwasi_fake_api::FakeApi;
    use cwasi_networked::RedisTarget;
    use cwasi_testbed::redis::{Redis, RedisVersion};
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

    #[tokio::test]
    async fn announcements_outlive_a_scale_and_a_fault_and_end_with_their_workflow() {
        const KEY: &str = "cwasi:demand:*";
        const FAULT: &str = "no-such-function";
        let redis = Redis::start(RedisVersion::Redis7);
        let target = RedisTarget { url: redis.url(), ca: None };
        let (link, _) = RedisLink::start(&target, "cwasi:re:test").unwrap();
        let patience = tokio::time::Instant::now() + Duration::from_secs(30);
        let session = link.session(patience).await.unwrap();
        let api = FakeApi::default();
        let kinds = json!({ "kind": "APIResourceList", "groupVersion": KEDA, "resources": [] });
        api.put("/apis/keda.sh/v1alpha1", kinds);
        let client = api.client();
        let key = || redis.cli(&["KEYS", KEY]);
        let (mut announcer, now) = (Announcer::default(), Instant::now());
        announcer.update(&client, &session, &[workflow("u", 1, "", 0)], now).await.unwrap();
        let announced = key();
        assert_eq!(announced.lines().count(), 1, "{announced}");
        // Calls wait for the pod that it gets now.
        announcer.update(&client, &session, &[workflow("u", 2, "", 1)], now).await.unwrap();
        assert_eq!(key(), announced);
        // A fault, and an operator that has not seen the Workflow without.
        redis.cli(&["EXPIRE", &announced, "20"]);
        let faulty = workflow("u", 3, FAULT, 0);
        let mut other = Announcer::default();
        other.update(&client, &session, &[faulty], now).await.unwrap();
        assert!(redis.cli(&["TTL", &announced]).parse::<u64>().unwrap() > 500);
        // One that is not on demand is not announced by it.
        redis.cli(&["DEL", &announced]);
        let later = now + demand::ANNOUNCE_EVERY;
        other.update(&client, &session, &[workflow("u", 3, FAULT, 0)], later).await.unwrap();
        assert_eq!(key(), "");
        announcer.update(&client, &session, &[workflow("u", 4, "", 0)], now).await.unwrap();
        assert_eq!(key(), announced, "at zero again");
        // Lost, it comes back with the next repetition.
        redis.cli(&["DEL", &announced]);
        for (now, is_there) in [(later - Duration::from_millis(1), false), (later, true)] {
            announcer.update(&client, &session, &[workflow("u", 4, "", 0)], now).await.unwrap();
            assert_eq!(!key().is_empty(), is_there);
        }
        announcer.update(&client, &session, &[], now).await.unwrap();
        assert_eq!(key(), "", "a call of what is gone fails at once");
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
