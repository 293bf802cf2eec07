//! The number of a Deployment's pods, where an autoscaler or somebody else decides it: the operator applies such a
//! Deployment without `replicas`. Two moments need a number nevertheless, which a second field manager
//! ([`names::REPLICAS_MANAGER`]) applies once:
//! - The operator gives the field up. Kubernetes would make it 1 then; pods stay as they are instead.
//! - There is no pod, and nothing raises that: an HPA leaves 0 as it is, and KEDA leaves it behind when it goes.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tracing::info;

use crate::context::Context;
use crate::fewest_pods::fewest_pods;
use crate::objects::{Facilities, Object, names};
use crate::observe::Observed;
use crate::plan::Plan;

/// A Deployment of which others decide the number of pods.
pub(super) struct Scaled {
    /// Pods that it has at least.
    fewest: u32,
    is_at_zero: bool,
}

impl Scaled {
    /// `None` for an object that is new, or of another kind, or has a fixed number.
    pub(super) fn of(
        object: &Object,
        plan: &Plan,
        facilities: &Facilities,
        observed: &Observed,
    ) -> Option<Self> {
        let is_scaled =
            object.resource.kind == "Deployment" && object.body["spec"]["replicas"].is_null();
        let deployment = observed.deployment(&object.name).filter(|_| is_scaled)?;
        let of_object = |name: &str| names::object(&plan.workflow, Some(name)) == object.name;
        let planned = plan.secondaries().find(|it| of_object(&it.function.name))?;
        let is_at_zero = deployment.spec.as_ref().and_then(|it| it.replicas) == Some(0);
        Some(Self { fewest: fewest_pods(plan, planned, facilities, observed), is_at_zero })
    }

    /// True if it has no pod, and nothing makes one.
    pub(super) const fn is_stuck(&self) -> bool {
        self.is_at_zero && self.fewest > 0
    }

    /// Applies the number if it has to; what the API answers then.
    pub(super) async fn hand_over(
        &self,
        context: &Context,
        namespace: &str,
        object: &Object,
    ) -> kube::Result<Option<DynamicObject>> {
        let all: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
        let Some(found) = all.get_opt(&object.name).await? else { return Ok(None) };
        let present = found.spec.as_ref().and_then(|it| it.replicas).unwrap_or(1);
        let present = u32::try_from(present).unwrap_or(0);
        let number = present.max(self.fewest);
        // Until the API takes the rest, the operator has the field, too.
        let is_handed_over = has_applied(&found, names::REPLICAS_MANAGER) && number == present;
        let is_given_up = has_applied(&found, names::MANAGER) && !is_handed_over;
        if !is_given_up && (present > 0 || self.fewest == 0) {
            return Ok(None);
        }
        info!(namespace, deployment = object.name, present, number, "sets the number of pods once");
        let body = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            // Somebody else's number that comes meanwhile is a conflict, after which all is looked at again.
            "metadata": { "name": object.name, "resourceVersion": found.resource_version() },
            "spec": { "replicas": number },
        });
        let api = super::api(context, namespace, &object.resource);
        let parameters = PatchParams::apply(names::REPLICAS_MANAGER).force();
        api.patch(&object.name, &parameters, &Patch::Apply(&body)).await.map(Some)
    }
}

/// True if a manager has applied `replicas`, and nobody has changed it.
fn has_applied(deployment: &Deployment, manager: &str) -> bool {
    deployment.managed_fields().iter().any(|it| {
        it.manager.as_deref() == Some(manager)
            && it.operation.as_deref() == Some("Apply")
            && it.fields_v1.as_ref().is_some_and(|it| !it.0["f:spec"]["f:replicas"].is_null())
    })
}
