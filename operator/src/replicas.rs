//! Functions whose number of pods others decide: an autoscaler of the user's own, such as a ScaledObject with a trigger
//! for KEDA's HTTP add-on. The Workflow's annotation [`names::SCALED_BY_OTHERS`] names them. The operator makes no
//! autoscaler for them, and applies their Deployments without `replicas`.

use std::collections::{BTreeMap, BTreeSet};

use cwasi_operator_api::names;
use cwasi_workflow::{Placement, Role, Workflow};

/// The names of the functions that the annotation names.
pub(crate) fn scaled_by_others(
    annotations: &BTreeMap<String, String>,
    workflow: &Workflow,
    faults: &mut Vec<String>,
) -> BTreeSet<String> {
    let key = names::SCALED_BY_OTHERS;
    let list = annotations.get(key).map_or("", String::as_str);
    let mut scaled = BTreeSet::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let found = workflow.functions.iter().find(|function| function.name == name);
        let Some(function) = found.filter(|it| it.role == Role::Secondary) else {
            faults.push(format!(
                "the annotation {key} names `{name}`, which is no secondary of this workflow"
            ));
            continue;
        };
        if workflow.placement == Placement::Pod {
            faults.push(format!(
                "the annotation {key} names `{name}`: placement.policy pod has one pod for all functions: use policy \
                 node"
            ));
        }
        if function.replicas != 1 {
            faults.push(format!(
                "spec.functions.{name}.replicas: the annotation {key} leaves this number to others: take one of them \
                 away"
            ));
        }
        scaled.insert(name.to_owned());
    }
    scaled
}
