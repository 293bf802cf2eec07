//! A HorizontalPodAutoscaler for each function with `scale`; a ScaledObject for one that is
//! started on demand; nothing for one that others scale.

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec,
    MetricTarget, ResourceMetricSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Facilities, Object, names, scaled_object};
use crate::plan::Plan;

/// All autoscalers.
#[must_use]
pub fn build(plan: &Plan, facilities: &Facilities) -> Vec<Object> {
    let scaled = plan.secondaries().filter(|it| !it.scaled_by_others).filter_map(|planned| {
        let function = &planned.function;
        let scale = function.cluster.scale?;
        if let (0, Some(address)) = (scale.min, facilities.on_demand()) {
            return Some(scaled_object::build(plan, planned, scale, address));
        }
        let name = names::object(&plan.workflow, Some(&function.name));
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let cpu = MetricSpec {
            type_: "Resource".to_owned(),
            resource: Some(ResourceMetricSource {
                name: "cpu".to_owned(),
                target: MetricTarget {
                    type_: "Utilization".to_owned(),
                    average_utilization: Some(number(scale.target)),
                    ..MetricTarget::default()
                },
            }),
            ..MetricSpec::default()
        };
        let spec = HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some("apps/v1".to_owned()),
                kind: "Deployment".to_owned(),
                name: name.clone(),
            },
            // A HorizontalPodAutoscaler keeps one pod at least.
            min_replicas: Some(number(scale.min.max(1))),
            max_replicas: number(scale.max),
            metrics: Some(vec![cpu]),
            ..HorizontalPodAutoscalerSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(name),
            labels: Some(names::labels(&plan.workflow, Some(&function.name))),
            ..ObjectMeta::default()
        };
        Some(Object::of(&HorizontalPodAutoscaler { metadata, spec: Some(spec), status: None }))
    });
    scaled.collect()
}
