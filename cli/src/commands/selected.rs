//! The containers that a user names.

use crate::arguments::Global;
use crate::containerd::containers::Container;
use crate::failure::{Exit, Failure};
use cwasi_workflow::nearest::nearest;

/// Those with one of `names` as id or function, or all of `workflow`.
///
/// # Errors
/// When no container has a name; the error has the nearest one.
pub fn selected(
    containers: Vec<Container>,
    names: &[String],
    workflow: Option<&str>,
    global: &Global,
) -> Result<Vec<Container>, Failure> {
    let namespace = &global.namespace;
    let is_named =
        |container: &Container, name: &str| container.id == name || container.function() == name;
    if let Some(workflow) = workflow {
        let found: Vec<_> =
            containers.into_iter().filter(|container| container.workflow() == workflow).collect();
        if found.is_empty() {
            let text = format!("namespace {namespace} has no container of workflow {workflow}");
            return Err(Failure::text(Exit::Missing, text));
        }
        return Ok(found);
    }
    for name in names {
        if !containers.iter().any(|container| is_named(container, name)) {
            let known = containers.iter().flat_map(|it| [it.id.as_str(), it.function()]);
            let nearest = nearest(name, known)
                .map_or(String::new(), |near| format!("; did you mean {near}?"));
            let text =
                format!("namespace {namespace} has no container or function {name}{nearest}");
            return Err(Failure::text(Exit::Missing, text));
        }
    }
    let named = |container: &Container| names.iter().any(|name| is_named(container, name));
    Ok(containers.into_iter().filter(named).collect())
}
