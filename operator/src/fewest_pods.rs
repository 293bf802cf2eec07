//! How many pods a function has at least, by its `scale` and by what could start the first one.

use cwasi_workflow::Scale;

use crate::objects::{Facilities, names};
use crate::observe::Observed;
use crate::plan::{Plan, PlannedFunction};

/// Pods that a function has at least, if it has some of its own. 0: something starts the first one when it is called.
pub(crate) fn fewest_pods(
    plan: &Plan,
    planned: &PlannedFunction,
    facilities: &Facilities,
    observed: &Observed,
) -> u32 {
    match planned.function.cluster.scale {
        _ if planned.scaled_by_others => 0,
        None => planned.function.replicas,
        Some(Scale { min: 0, .. }) => {
            let name = names::object(&plan.workflow, Some(&planned.function.name));
            let is_started = facilities.on_demand().is_some() && !observed.lacks_starter(&name);
            u32::from(!is_started)
        }
        Some(scale) => scale.min,
    }
}
