//! The container that the name of a caller means: that of this id, or one of this function. containerd also lists
//! containers that have ended, and those of all pods of the node.

use cwasi_config::annotations::CRI_SANDBOX_NAMESPACE;

use crate::containerd::Containerd;
use crate::containerd::containers::Container;
use crate::containerd::tasks::Task;
use crate::failure::{Exit, Failure};
use crate::output;

/// Most containers that an error lists.
const LISTED_MAX: usize = 8;

/// A caller as the command line names it.
pub(super) struct CallerName<'a> {
    /// A container's id, or a function.
    pub(super) name: &'a str,
    /// Kubernetes namespace; empty for any.
    pub(super) pod_namespace: &'a str,
}

impl<'a> CallerName<'a> {
    /// Reads FUNCTION or NAMESPACE/FUNCTION, and `--pod-namespace`, which is empty without it.
    pub(super) fn parse(text: &'a str, pod_namespace: &'a str) -> Result<Self, Failure> {
        let Some((of_name, name)) = text.rsplit_once('/') else {
            return Ok(Self { name: text, pod_namespace });
        };
        if pod_namespace.is_empty() || pod_namespace == of_name {
            return Ok(Self { name, pod_namespace: of_name });
        }
        let text =
            format!("{text} is not of --pod-namespace {pod_namespace}: leave one of them out");
        Err(Failure::text(Exit::Usage, text))
    }

    /// Its container: that of this id, or else one of the function, a running one before those that have ended.
    /// `None` without any.
    pub(super) async fn container<'c>(
        &self,
        containers: &'c [Container],
        containerd: &Containerd,
    ) -> Result<Option<&'c Container>, Failure> {
        let functions = containers.iter().filter(|it| !it.is_service() && self.is_in(it));
        if let Some(container) = functions.clone().find(|it| it.id == self.name) {
            return Ok(Some(container));
        }
        let mut found: Vec<_> = functions.filter(|it| it.function() == self.name).collect();
        if found.len() > 1 {
            let tasks = containerd.tasks().await?;
            let is_alive = |it: &&Container| tasks.get(&it.id).is_some_and(Task::is_alive);
            if found.iter().any(is_alive) {
                found.retain(is_alive);
            }
        }
        self.one_of(&found)
    }

    fn is_in(&self, container: &Container) -> bool {
        self.pod_namespace.is_empty() || self.pod_namespace == pod_namespace(container)
    }

    /// The first of a function's containers. They are instances of one function if they have the same scope.
    fn one_of<'c>(&self, found: &[&'c Container]) -> Result<Option<&'c Container>, Failure> {
        let Some((first, others)) = found.split_first() else { return Ok(None) };
        if others.iter().any(|it| scope(it) != scope(first)) {
            return Err(self.ambiguous(found));
        }
        if !others.is_empty() {
            let (name, count) = (self.name, found.len());
            output::note(format_args!(
                "cwasi: {name} has {count} containers; this is about {}",
                first.id
            ));
        }
        Ok(Some(first))
    }

    fn ambiguous(&self, found: &[&Container]) -> Failure {
        let mut listed: Vec<_> = found.iter().take(LISTED_MAX).map(|it| described(it)).collect();
        if found.len() > LISTED_MAX {
            listed.push(format!("and {} more", found.len() - LISTED_MAX));
        }
        let namespaces = found.iter().any(|it| pod_namespace(it) != pod_namespace(found[0]));
        let or = if namespaces { "give --pod-namespace, or " } else { "" };
        let (name, listed) = (self.name, listed.join(", "));
        let text = format!("{name} is ambiguous: {or}name one of these containers: {listed}");
        Failure::text(Exit::Usage, text)
    }
}

fn pod_namespace(container: &Container) -> &str {
    container.annotation(CRI_SANDBOX_NAMESPACE)
}

/// Kubernetes namespace and workflow.
fn scope(container: &Container) -> (&str, &str) {
    (pod_namespace(container), container.workflow())
}

/// A container's id with its scope.
fn described(container: &Container) -> String {
    let (pod_namespace, workflow) = scope(container);
    let parts: Vec<_> = [("pod namespace", pod_namespace), ("workflow", workflow)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(what, value)| format!("{what} {value}"))
        .collect();
    let id = &container.id;
    if parts.is_empty() { id.clone() } else { format!("{id} ({})", parts.join(", ")) }
}
