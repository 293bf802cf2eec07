//! The objects and pods of all Workflows, as the watches last showed them. Reconciling reads this instead of asking the
//! API, so a Workflow of which nothing has changed costs no request.
//!
//! - [`watches`]: fills it, and says which Workflows changed; [`drift`]: whether an object still is as it was applied.
//!
//! Invariant: what the API answered to an apply is here before the watch shows it, so no reconcile undoes or repeats
//! the one before it.

pub mod drift;
pub mod watches;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::objects::{self, Object, names};
use crate::resource::Workflow;

/// What of a pod is read.
const POD_STATUS: [&str; 3] = ["conditions", "containerStatuses", "initContainerStatuses"];

/// The objects, of all kinds.
#[derive(Debug)]
pub struct Cache {
    /// What is watched: [`objects::kinds`], and pods.
    kinds: Vec<ApiResource>,
    state: Mutex<State>,
}

/// One object: index of its kind, namespace, name.
type Key = (usize, String, String);

#[derive(Debug)]
struct State {
    kinds: Vec<KindState>,
    /// New objects of a kind, while its watch lists them; by kind.
    listing: Vec<HashMap<Key, DynamicObject>>,
    objects: HashMap<Key, Entry>,
    /// By namespace and name of the Workflow.
    workflows: HashMap<(String, String), BTreeSet<Key>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindState {
    /// Not listed yet.
    Unknown,
    Listed,
    /// The cluster does not have the kind.
    Missing,
}

#[derive(Clone, Debug)]
struct Entry {
    workflow: String,
    object: Arc<DynamicObject>,
    /// Digest of what was applied, while this object is the API's answer to it.
    applied: Option<String>,
}

/// Workflows to reconcile because of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Touched {
    Some(Vec<ObjectRef<Workflow>>),
    /// A kind came or went.
    All,
}

impl Default for Cache {
    fn default() -> Self {
        let mut kinds = objects::kinds().to_vec();
        kinds.push(ApiResource::erase::<Pod>(&()));
        let state = State {
            kinds: vec![KindState::Unknown; kinds.len()],
            listing: vec![HashMap::new(); kinds.len()],
            objects: HashMap::new(),
            workflows: HashMap::new(),
        };
        Self { kinds, state: Mutex::new(state) }
    }
}

impl Cache {
    /// Kinds to be watched; an event names its kind by the index.
    #[must_use]
    pub fn kinds(&self) -> &[ApiResource] {
        &self.kinds
    }

    /// True when each kind was listed, or is known to be missing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.lock().kinds.contains(&KindState::Unknown)
    }

    /// True if the cluster has this kind.
    #[must_use]
    pub fn has_kind(&self, kind: &ApiResource) -> bool {
        let index = self.kinds.iter().position(|it| it == kind);
        index.is_some_and(|index| self.lock().kinds[index] == KindState::Listed)
    }

    /// Takes an event of the watch of a kind.
    pub fn handle(&self, kind: usize, event: Event<DynamicObject>) -> Touched {
        let mut state = self.lock();
        match event {
            Event::Apply(object) => self.set(&mut state, kind, object),
            Event::Delete(object) => {
                let key = (kind, object.namespace().unwrap_or_default(), object.name_any());
                Touched::Some(state.remove(&key).into_iter().collect())
            }
            Event::Init => {
                state.listing[kind].clear();
                Touched::Some(Vec::new())
            }
            Event::InitApply(mut object) => {
                self.slim(kind, &mut object);
                let key = (kind, object.namespace().unwrap_or_default(), object.name_any());
                state.listing[kind].insert(key, object);
                Touched::Some(Vec::new())
            }
            Event::InitDone => self.listed(&mut state, kind),
        }
    }

    /// Takes that the cluster does not have a kind.
    pub fn lack(&self, kind: usize) -> Touched {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.kinds[kind], KindState::Missing);
        let gone: Vec<_> = state.objects.keys().filter(|key| key.0 == kind).cloned().collect();
        for key in gone {
            state.remove(&key);
        }
        changed(before, KindState::Missing, Vec::new())
    }

    /// Takes what the API answered when an object was applied; `digest`: of what was applied, if it was all of it.
    pub fn put(&self, object: &Object, answer: DynamicObject, digest: Option<String>) {
        let Some(kind) = self.kinds.iter().position(|it| *it == object.resource) else { return };
        let mut state = self.lock();
        let key = (kind, answer.namespace().unwrap_or_default(), answer.name_any());
        if state.objects.get(&key).is_some_and(|known| is_newer(&known.object, &answer)) {
            return;
        }
        self.set(&mut state, kind, answer);
        if let Some(entry) = state.objects.get_mut(&key) {
            entry.applied = digest;
        }
    }

    /// All objects and pods with the label of a Workflow.
    #[must_use]
    pub fn of(&self, namespace: &str, workflow: &str) -> Vec<(&ApiResource, Arc<DynamicObject>)> {
        let state = self.lock();
        let keys = state.workflows.get(&(namespace.to_owned(), workflow.to_owned()));
        keys.into_iter()
            .flatten()
            .map(|key| (&self.kinds[key.0], Arc::clone(&state.objects[key].object)))
            .collect()
    }

    /// True if an object is there as it was applied: all of `body`, by the annotation with its `digest`.
    #[must_use]
    pub fn is_current(&self, object: &Object, namespace: &str, body: &Value, digest: &str) -> bool {
        let Some(kind) = self.kinds.iter().position(|it| *it == object.resource) else {
            return false;
        };
        let key = (kind, namespace.to_owned(), object.name.clone());
        let Some(entry) = self.lock().objects.get(&key).cloned() else { return false };
        // The API writes some values in another way, such as quantities: its own answer is none the less current.
        entry.applied.as_deref() == Some(digest)
            || drift::is_as_applied(&entry.object, body, digest)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the next step that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: &mut State, kind: usize, mut object: DynamicObject) -> Touched {
        self.slim(kind, &mut object);
        let key = (kind, object.namespace().unwrap_or_default(), object.name_any());
        Touched::Some(state.set(key, object))
    }

    fn listed(&self, state: &mut State, kind: usize) -> Touched {
        let found = std::mem::take(&mut state.listing[kind]);
        let gone: Vec<_> = state
            .objects
            .keys()
            .filter(|key| key.0 == kind && !found.contains_key(*key))
            .cloned()
            .collect();
        let mut touched: Vec<_> = gone.iter().filter_map(|key| state.remove(key)).collect();
        for (key, object) in found {
            touched.extend(state.set(key, object));
        }
        let before = std::mem::replace(&mut state.kinds[kind], KindState::Listed);
        changed(before, KindState::Listed, touched)
    }

    /// Drops what is never read: a cluster has thousands of pods.
    fn slim(&self, kind: usize, object: &mut DynamicObject) {
        object.metadata.managed_fields = None;
        if self.kinds[kind].kind != "Pod" {
            return;
        }
        object.metadata.annotations = None;
        if let Value::Object(fields) = &mut object.data {
            fields.retain(|key, _| key == "status");
        }
        if let Some(Value::Object(status)) = object.data.get_mut("status") {
            status.retain(|key, _| POD_STATUS.contains(&key.as_str()));
        }
    }
}

impl State {
    /// Returns the Workflows that are concerned; none if nothing is new.
    fn set(&mut self, key: Key, object: DynamicObject) -> Vec<ObjectRef<Workflow>> {
        let version = object.metadata.resource_version.as_ref();
        if let Some(known) = self.objects.get(&key)
            && version.is_some()
            && known.object.metadata.resource_version.as_ref() == version
        {
            return Vec::new();
        }
        let mut touched: Vec<_> = self.remove(&key).into_iter().collect();
        if let Some(workflow) = object.labels().get(names::WORKFLOW).cloned() {
            self.workflows
                .entry((key.1.clone(), workflow.clone()))
                .or_default()
                .insert(key.clone());
            let reference = ObjectRef::new(&workflow).within(&key.1);
            if !touched.contains(&reference) {
                touched.push(reference);
            }
            self.objects.insert(key, Entry { workflow, object: Arc::new(object), applied: None });
        }
        touched
    }

    fn remove(&mut self, key: &Key) -> Option<ObjectRef<Workflow>> {
        let entry = self.objects.remove(key)?;
        let reference = ObjectRef::new(&entry.workflow).within(&key.1);
        let workflow = (key.1.clone(), entry.workflow);
        if let Some(keys) = self.workflows.get_mut(&workflow) {
            keys.remove(key);
            if keys.is_empty() {
                self.workflows.remove(&workflow);
            }
        }
        Some(reference)
    }
}

/// True if the watch has shown a later state of an object than an answer has.
fn is_newer(known: &DynamicObject, answer: &DynamicObject) -> bool {
    // The API compares them as numbers itself (KEP-5504).
    let version = |it: &DynamicObject| it.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    version(known).zip(version(answer)).is_some_and(|(known, answer)| known > answer)
}

fn changed(before: KindState, now: KindState, touched: Vec<ObjectRef<Workflow>>) -> Touched {
    // The first list changes nothing: nothing was reconciled before it.
    let is_new = before != KindState::Unknown && before != now;
    if is_new { Touched::All } else { Touched::Some(touched) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEPLOYMENT: usize = 0;

    fn object(name: &str, workflow: &str, version: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "n", "resourceVersion": version,
                "labels": { "cwasi.dev/workflow": workflow },
            },
            "spec": { "replicas": 1 },
        }))
        .unwrap()
    }

    fn touched(names: &[&str]) -> Touched {
        Touched::Some(names.iter().map(|name| ObjectRef::new(name).within("n")).collect())
    }

    fn names(cache: &Cache, workflow: &str) -> Vec<String> {
        cache.of("n", workflow).iter().map(|(_, object)| object.name_any()).collect()
    }

    #[test]
    fn an_object_belongs_to_the_workflow_of_its_label() {
        let cache = Cache::default();
        assert_eq!(cache.handle(DEPLOYMENT, Event::Apply(object("d", "a", "1"))), touched(&["a"]));
        assert_eq!(cache.handle(DEPLOYMENT, Event::Apply(object("d", "a", "1"))), touched(&[]));
        assert_eq!(
            cache.handle(DEPLOYMENT, Event::Apply(object("d", "b", "2"))),
            touched(&["a", "b"])
        );
        assert_eq!((names(&cache, "a"), names(&cache, "b")), (vec![], vec!["d".to_owned()]));
        assert_eq!(cache.handle(DEPLOYMENT, Event::Delete(object("d", "b", "3"))), touched(&["b"]));
        assert!(names(&cache, "b").is_empty());
    }

    /// A watch that was interrupted lists anew: what is not in the list is gone.
    #[test]
    fn a_list_replaces_what_was_there() {
        let cache = Cache::default();
        for name in ["d", "e"] {
            cache.handle(DEPLOYMENT, Event::Apply(object(name, "a", "1")));
        }
        cache.handle(DEPLOYMENT, Event::Init);
        cache.handle(DEPLOYMENT, Event::InitApply(object("e", "a", "1")));
        assert_eq!(names(&cache, "a"), ["d", "e"], "until the list is complete");
        assert_eq!(cache.handle(DEPLOYMENT, Event::InitDone), touched(&["a"]));
        assert_eq!(names(&cache, "a"), ["e"]);
    }

    #[test]
    fn all_workflows_are_reconciled_when_a_kind_comes_or_goes() {
        let cache = Cache::default();
        assert!(!cache.is_ready());
        for kind in 0..cache.kinds().len() {
            assert_eq!(cache.lack(kind), touched(&[]));
        }
        assert!(cache.is_ready() && !cache.has_kind(&cache.kinds()[DEPLOYMENT]));
        assert_eq!(cache.handle(DEPLOYMENT, Event::InitDone), Touched::All);
        assert!(cache.has_kind(&cache.kinds()[DEPLOYMENT]));
        assert_eq!(cache.lack(DEPLOYMENT), Touched::All);
    }

    /// The API writes `0.5` of a CPU as `500m`. While that is its answer to the last apply, nothing has changed.
    #[test]
    fn the_answer_to_an_apply_is_current_until_there_is_a_newer_version() {
        let cache = Cache::default();
        let body = json!({ "spec": { "replicas": 2 } });
        let wanted = Object {
            resource: cache.kinds()[DEPLOYMENT].clone(),
            name: "d".to_owned(),
            body: body.clone(),
        };
        let is_current = |digest: &str| cache.is_current(&wanted, "n", &body, digest);
        assert!(!is_current("x"));
        cache.put(&wanted, object("d", "a", "1"), Some("x".to_owned()));
        // The watch shows the same.
        cache.handle(DEPLOYMENT, Event::Apply(object("d", "a", "1")));
        assert_eq!((is_current("x"), is_current("y")), (true, false));
        cache.handle(DEPLOYMENT, Event::Apply(object("d", "a", "2")));
        assert!(!is_current("x"));
    }

    #[test]
    fn of_a_pod_only_labels_and_status_are_kept() {
        let cache = Cache::default();
        let pods = cache.kinds().len() - 1;
        let pod = json!({
            "metadata": { "name": "p", "namespace": "n", "labels": { "cwasi.dev/workflow": "a" } },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "podIP": "10.0.0.1", "containerStatuses": [{ "name": "c" }] },
        });
        cache.handle(pods, Event::Apply(serde_json::from_value(pod).unwrap()));
        let (_, kept) = &cache.of("n", "a")[0];
        assert_eq!(kept.data, json!({ "status": { "containerStatuses": [{ "name": "c" }] } }));
    }
}
