//! Writes a part of a Workflow's status, and logs each condition that changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::resource::Workflow;

/// Applies `fields` of the status as `manager`, whose other fields go. `change` are its conditions before and now. A
/// Workflow that was deleted meanwhile is left alone.
///
/// # Errors
/// What the API says.
pub async fn write(
    client: &Client,
    workflow: &Workflow,
    manager: &str,
    fields: &Value,
    change: (&[Condition], &[Condition]),
) -> kube::Result<()> {
    let namespace = workflow.namespace().unwrap_or_default();
    let api: Api<Workflow> = Api::namespaced(client.clone(), &namespace);
    let body = json!({ "apiVersion": "cwasi.dev/v1alpha1", "kind": "Workflow", "status": fields });
    let parameters = PatchParams::apply(manager).force();
    match api.patch_status(&workflow.name_any(), &parameters, &Patch::Apply(&body)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error),
    }
    let name = workflow.name_any();
    for condition in changed(change.0, change.1) {
        let text = text(condition);
        if condition.type_ == "Degraded" && condition.status == "True" {
            warn!(namespace, workflow = name, "{text}");
        } else {
            info!(namespace, workflow = name, "{text}");
        }
    }
    Ok(())
}

/// A condition in one line.
fn text(condition: &Condition) -> String {
    let Condition { type_: kind, status, reason, message, .. } = condition;
    let message = message.replace('\n', "; ");
    let colon = if message.is_empty() { "" } else { ": " };
    format!("{kind}={status} ({reason}){colon}{message}")
}

/// Conditions with another status or reason than before. What needs a person is new with another message, too; other
/// messages have numbers, which change often.
fn changed<'a>(before: &[Condition], now: &'a [Condition]) -> Vec<&'a Condition> {
    let is_same = |now: &&Condition| {
        before.iter().any(|it| {
            let is_told = now.type_ != "Degraded" || it.message == now.message;
            (&it.type_, &it.status, &it.reason) == (&now.type_, &now.status, &now.reason) && is_told
        })
    };
    now.iter().filter(|it| !is_same(it)).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn a_changed_condition_is_logged_once() {
        let waiting = condition("Ready", "False", "Waiting", "not ready: a (0 of 2)");
        let degraded = condition("Degraded", "True", "Refused", "a quota");
        let before = [waiting.clone(), degraded.clone()];
        assert_eq!(changed(&[], &before), [&waiting, &degraded]);
        assert!(changed(&before, &before).is_empty());
        let ready = condition("Ready", "True", "AllReady", "");
        let other = condition("Degraded", "True", "Refused", "another quota");
        let now = [ready.clone(), other.clone()];
        assert_eq!(changed(&before, &now), [&ready, &other]);
        let further = condition("Ready", "False", "Waiting", "not ready: a (1 of 2)");
        assert!(changed(&before, &[further, degraded]).is_empty());
        let two = condition("Degraded", "True", "Invalid", "a\nb");
        assert_eq!(
            [text(&ready), text(&two)],
            ["Ready=True (AllReady)", "Degraded=True (Invalid): a; b"]
        );
    }
}
