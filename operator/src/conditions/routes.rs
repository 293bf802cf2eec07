//! HTTPRoutes that no Gateway serves.

use serde_json::Value;

use super::{Trouble, View, found};
use crate::objects::names;
use crate::observe::{is_answered, is_old};
use crate::plan::Plan;

/// Troubles of all functions with `ingress.gateway`.
pub(super) fn troubles(plan: &Plan, view: &View<'_>) -> Vec<Trouble> {
    let of = |planned: &crate::plan::PlannedFunction| {
        let gateway = planned.function.cluster.ingress.as_ref()?.gateway.as_ref()?;
        let function = &planned.function.name;
        if !view.facilities.has_gateway_api {
            let text = format!(
                "{function}: `ingress.gateway` needs the Gateway API, which this cluster does not have: install it \
                 (https://gateway-api.sigs.k8s.io), or use an Ingress (`ingress.class`)"
            );
            return Some(Trouble::new("NoGatewayApi", text));
        }
        let name = names::object(&plan.workflow, Some(function));
        let route = found(&view.observed.http_routes, &name)?;
        let parents = route.data["status"]["parents"].as_array();
        let refused = parents.into_iter().flatten().find_map(refusal);
        let text = match refused {
            Some(refused) => {
                format!(
                    "{function}: the Gateway {gateway} does not serve HTTPRoute {name}: {refused}"
                )
            }
            None if !is_answered(route) && is_old(route) => format!(
                "{function}: no controller answers to HTTPRoute {name}: is there a Gateway {gateway}, and a controller \
                 of its class?"
            ),
            None => return None,
        };
        Some(Trouble::new("NoRoute", text))
    };
    plan.functions.iter().filter_map(of).collect()
}

/// What a Gateway says against a route.
fn refusal(parent: &Value) -> Option<String> {
    let conditions = parent["conditions"].as_array()?;
    let refusal = conditions.iter().find(|it| {
        it["status"] == "False" && (it["type"] == "Accepted" || it["type"] == "ResolvedRefs")
    })?;
    let text = |key: &str| refusal[key].as_str().unwrap_or_default();
    Some(format!("{} ({})", text("message"), text("reason")))
}
