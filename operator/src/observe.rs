//! What a cluster has of one Workflow.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::cache::Cache;
use crate::objects::{Object, names};

/// A controller that works answers to an object sooner.
const ANSWER_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Objects that a Workflow controls, and its pods.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub deployments: Vec<Deployment>,
    pub stateful_sets: Vec<StatefulSet>,
    pub jobs: Vec<Job>,
    pub cron_jobs: Vec<CronJob>,
    /// Labels and status, as the cache has them.
    pub pods: Vec<Pod>,
    pub scaled_objects: Vec<DynamicObject>,
    pub http_routes: Vec<DynamicObject>,
    /// All of its objects.
    pub objects: Vec<Owned>,
}

/// An object that a Workflow controls.
#[derive(Clone, Debug)]
pub struct Owned {
    pub resource: ApiResource,
    pub name: String,
    pub uid: Option<String>,
    /// Its deletion has begun, and a finalizer holds it up.
    pub is_terminating: bool,
}

impl Observed {
    /// Reads all that has the Workflow's label and, but for pods, its `uid` as the controller's.
    #[must_use]
    pub fn read(cache: &Cache, namespace: &str, workflow: &str, uid: &str) -> Self {
        let mut all = Self::default();
        for (kind, object) in cache.of(namespace, workflow) {
            if kind.kind == "Pod" {
                all.pods.extend(parsed(&object));
                continue;
            }
            if !is_controlled(&object, uid) {
                continue;
            }
            let (resource, name) = (kind.clone(), object.name_any());
            let is_terminating = object.metadata.deletion_timestamp.is_some();
            all.objects.push(Owned { resource, name, uid: object.uid(), is_terminating });
            match kind.kind.as_str() {
                "Deployment" => all.deployments.extend(parsed(&object)),
                "StatefulSet" => all.stateful_sets.extend(parsed(&object)),
                "Job" => all.jobs.extend(parsed(&object)),
                "CronJob" => all.cron_jobs.extend(parsed(&object)),
                "ScaledObject" => all.scaled_objects.push((*object).clone()),
                "HTTPRoute" => all.http_routes.push((*object).clone()),
                _ => {}
            }
        }
        all
    }

    /// True if the Workflow has this object.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        self.objects
            .iter()
            .any(|it| it.resource.kind == object.resource.kind && it.name == object.name)
    }

    #[must_use]
    pub fn deployment(&self, name: &str) -> Option<&Deployment> {
        self.deployments.iter().find(|it| it.name_any() == name)
    }

    #[must_use]
    pub fn stateful_set(&self, name: &str) -> Option<&StatefulSet> {
        self.stateful_sets.iter().find(|it| it.name_any() == name)
    }

    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.iter().find(|it| it.name_any() == name)
    }

    #[must_use]
    pub fn cron_job(&self, name: &str) -> Option<&CronJob> {
        self.cron_jobs.iter().find(|it| it.name_any() == name)
    }

    /// True if the deletion of a ScaledObject of this name has begun: only KEDA takes its finalizer away.
    #[must_use]
    pub fn is_terminating(&self, scaled_object: &str) -> bool {
        let mut all = self.scaled_objects.iter();
        all.any(|it| it.name_any() == scaled_object && it.metadata.deletion_timestamp.is_some())
    }

    /// True if nothing starts a function's first pod: its Deployment is there, and no ScaledObject that stays.
    #[must_use]
    pub fn lacks_starter(&self, name: &str) -> bool {
        let has_one = self.scaled_objects.iter().any(|it| it.name_any() == name);
        self.is_terminating(name) || self.deployment(name).is_some() && !has_one
    }

    /// True if an HTTPRoute has no answer of a Gateway yet, or a ScaledObject none of KEDA.
    #[must_use]
    pub fn has_unanswered(&self) -> bool {
        self.http_routes.iter().any(|it| !is_answered(it))
            || self.scaled_objects.iter().any(|it| !is_scaled(it))
    }

    /// Pods of a function; `None` = of the whole workflow.
    pub fn pods_of<'a>(&'a self, function: Option<&'a str>) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |pod| {
            function
                .is_none_or(|name| pod.labels().get(names::FUNCTION).is_some_and(|it| it == name))
        })
    }

    /// Pods of a service.
    pub fn pods_of_service<'a>(&'a self, service: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.pods
            .iter()
            .filter(move |pod| pod.labels().get(names::SERVICE).is_some_and(|it| it == service))
    }
}

/// True if KEDA has written into a ScaledObject's status.
#[must_use]
pub fn is_scaled(object: &DynamicObject) -> bool {
    object.data["status"]["conditions"].as_array().is_some_and(|it| !it.is_empty())
}

/// True if there was time for an answer to an object. A controller that works answers sooner.
#[must_use]
pub fn is_old(object: &DynamicObject) -> bool {
    let created = object.metadata.creation_timestamp.as_ref();
    created.is_some_and(|it| Timestamp::now().duration_since(it.0) > ANSWER_AFTER)
}

/// True if the controller of a Gateway has written into an HTTPRoute's status.
#[must_use]
pub fn is_answered(route: &DynamicObject) -> bool {
    route.data["status"]["parents"].as_array().is_some_and(|it| !it.is_empty())
}

fn parsed<K>(object: &DynamicObject) -> Option<K>
where
    K: kube::Resource + DeserializeOwned,
{
    let parsed = object.clone().try_parse();
    parsed.map_err(|error| warn!(name = object.name_any(), %error, "an object is unreadable")).ok()
}

fn is_controlled(object: &DynamicObject, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
}
