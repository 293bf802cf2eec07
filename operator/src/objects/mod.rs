//! Pure builders: from a plan to Kubernetes' objects. `operator/tests/golden` has what they make of example files.

mod addresses;
mod affinity;
mod http_route;
pub mod pods;
mod scaled_object;
mod scaling;
mod services;
mod workloads;

pub use cwasi_operator_api::names;
use k8s_openapi::Resource as Kind;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ApiResource;
use serde::Serialize;
use serde_json::Value;

use crate::plan::Plan;

pub use http_route::http_route_kind;
pub use scaled_object::scaled_object_kind;

/// What a cluster has besides Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct Facilities {
    /// KEDA is there.
    pub has_keda: bool,
    /// The kinds of the Gateway API are there.
    pub has_gateway_api: bool,
    /// `HOST:PORT` of this operator's scaler, as KEDA reaches it; `None` without Redis.
    pub scaler: Option<String>,
}

impl Facilities {
    /// The scaler's address if functions can be started on demand.
    #[must_use]
    pub fn on_demand(&self) -> Option<&str> {
        self.scaler.as_deref().filter(|_| self.has_keda)
    }
}

/// An object as it is applied.
#[derive(Clone, Debug)]
pub struct Object {
    pub resource: ApiResource,
    pub name: String,
    pub body: Value,
}

impl Object {
    fn of<K>(object: &K) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Serialize + Kind,
    {
        let mut body = serde_json::to_value(object).expect("an object is JSON");
        // A status is the cluster's to write.
        if let Value::Object(fields) = &mut body {
            fields.remove("status");
        }
        let name = object.meta().name.clone().unwrap_or_default();
        Self { resource: ApiResource::erase::<K>(&()), name, body }
    }

    /// Its kind and name, as `Deployment/hello-greeter`.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}/{}", self.resource.kind, self.name)
    }
}

/// All kinds that are made, so that what is no longer wanted can be found.
#[must_use]
pub fn kinds() -> [ApiResource; 10] {
    [
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<StatefulSet>(&()),
        ApiResource::erase::<Job>(&()),
        ApiResource::erase::<CronJob>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<Ingress>(&()),
        ApiResource::erase::<HorizontalPodAutoscaler>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
        scaled_object_kind(),
        http_route_kind(),
    ]
}

/// True for a kind that a cluster may be without.
#[must_use]
pub fn is_optional(kind: &ApiResource) -> bool {
    [scaled_object_kind(), http_route_kind()].contains(kind)
}

/// All objects of a workflow.
#[must_use]
pub fn build(plan: &Plan, facilities: &Facilities) -> Vec<Object> {
    let mut objects = services::build(plan);
    objects.extend(addresses::build(plan, facilities));
    objects.extend(workloads::build(plan));
    objects.extend(scaling::build(plan, facilities));
    objects
}
