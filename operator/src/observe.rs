//! What a cluster has of one Workflow.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::{Api, Client, ResourceExt as _};

use crate::objects::{self, Object, names};

/// Objects that a Workflow controls, and its pods.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub deployments: Vec<Deployment>,
    pub stateful_sets: Vec<StatefulSet>,
    pub jobs: Vec<Job>,
    pub cron_jobs: Vec<CronJob>,
    pub pods: Vec<Pod>,
    /// All of its objects: kind and name.
    pub objects: Vec<(ApiResource, String)>,
    /// KEDA is there.
    pub has_keda: bool,
}

impl Observed {
    /// Asks for all that has the Workflow's label and, but for pods, its `uid` as the controller's.
    ///
    /// # Errors
    /// What the API says.
    pub async fn ask(
        client: &Client,
        namespace: &str,
        workflow: &str,
        uid: &str,
    ) -> kube::Result<Self> {
        let selected = ListParams::default().labels(&format!("{}={workflow}", names::WORKFLOW));
        let mut objects = Vec::new();
        let mut has_keda = true;
        for kind in objects::kinds() {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
            let found = match api.list_metadata(&selected).await {
                Err(kube::Error::Api(status)) if status.code == 404 && is_kedas(&kind) => {
                    has_keda = false;
                    continue;
                }
                found => found?,
            };
            let own = found.items.into_iter().filter(|it| is_controlled(it, uid));
            objects.extend(own.map(|it| (kind.clone(), it.name_any())));
        }
        let is_own = |kind: &str, name: String| {
            objects.iter().any(|(resource, own)| resource.kind == kind && *own == name)
        };
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let mut deployments = deployments.list(&selected).await?.items;
        deployments.retain(|it| is_own("Deployment", it.name_any()));
        let stateful_sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        let mut stateful_sets = stateful_sets.list(&selected).await?.items;
        stateful_sets.retain(|it| is_own("StatefulSet", it.name_any()));
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
        let mut jobs = jobs.list(&selected).await?.items;
        jobs.retain(|it| is_own("Job", it.name_any()));
        let cron_jobs: Api<CronJob> = Api::namespaced(client.clone(), namespace);
        let mut cron_jobs = cron_jobs.list(&selected).await?.items;
        cron_jobs.retain(|it| is_own("CronJob", it.name_any()));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pods = pods.list(&selected).await?.items;
        Ok(Self { deployments, stateful_sets, jobs, cron_jobs, pods, objects, has_keda })
    }

    /// True if the Workflow has this object.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        self.objects
            .iter()
            .any(|(resource, name)| resource.kind == object.resource.kind && *name == object.name)
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

fn is_kedas(kind: &ApiResource) -> bool {
    *kind == objects::scaled_object_kind()
}

fn is_controlled(object: &PartialObjectMeta<DynamicObject>, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
}
