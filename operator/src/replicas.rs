//! Functions whose number of pods others decide: an autoscaler of the user's own, such as a ScaledObject with a trigger
//! for KEDA's HTTP add-on. The Workflow's annotation [`names::SCALED_BY_OTHERS`] names them. The operator makes no
//! autoscaler for them, and applies their Deployments without `replicas`.

use std::collections::BTreeMap;

use cwasi_operator_api::names;
use cwasi_workflow::{Function, Placement, Role};

/// Marks the functions that the annotation names, each with its mark.
pub(crate) fn read(
    annotations: &BTreeMap<String, String>,
    placement: Placement,
    functions: &mut [(&Function, &mut bool)],
    faults: &mut Vec<String>,
) {
    let key = names::SCALED_BY_OTHERS;
    let Some(list) = annotations.get(key) else { return };
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let found = functions.iter_mut().find(|(function, _)| function.name == name);
        let Some((function, mark)) = found.filter(|(it, _)| it.role == Role::Secondary) else {
            faults.push(format!(
                "the annotation {key} names `{name}`, which is no secondary of this workflow"
            ));
            continue;
        };
        let path = format!("spec.functions.{name}");
        if placement == Placement::Pod {
            faults.push(format!(
                "the annotation {key} names `{name}`: placement.policy pod has one pod for all functions: use policy node"
            ));
        }
        if function.replicas != 1 {
            faults.push(format!(
                "{path}.replicas: the annotation {key} leaves this number to others: take one of them away"
            ));
        }
        **mark = true;
    }
}
