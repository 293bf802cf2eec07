//! What a file asks for and `run` or `deploy` does not do. If nothing else is left, or a user would wait in vain, the
//! command is refused; otherwise a line names it. Each text has the command that does it.

use std::path::Path;

use cwasi_workflow::{Role, Workflow};

use crate::failure::{Exit, Failure};
use crate::output;

/// Checks that there is something to run, and names what `run` does not do.
///
/// # Errors
/// When the workflow has no primary.
pub fn by_run(workflow: &Workflow, file: &Path) -> Result<(), Failure> {
    let file = file.display();
    if named(workflow, Role::Primary).is_empty() {
        let text = format!(
            "{file} has no primary, so there is nothing to run: cwasi deploy {file} starts its secondaries"
        );
        return Err(Failure::text(Exit::Data, text));
    }
    note_schedules(workflow);
    Ok(())
}

/// Checks that there is something to deploy, and names what `deploy` does not do.
///
/// # Errors
/// When the workflow has no secondary, or a function with a schedule.
pub fn by_deploy(workflow: &Workflow, file: &Path) -> Result<(), Failure> {
    let (file, name) = (file.display(), &workflow.name);
    if let Some(function) = scheduled(workflow).next() {
        let text = format!(
            "function {function}: deploy runs nothing at times, so `schedule` works in a cluster only: kubectl apply -f \
             {file}, or let a systemd timer call cwasi run {file}"
        );
        return Err(Failure::text(Exit::Data, text));
    }
    if named(workflow, Role::Secondary).is_empty() {
        let text = format!(
            "{file} has no secondary, so there is nothing to deploy: cwasi run {file} runs its primaries, and cwasi rm \
             --workflow {name} removes what was deployed"
        );
        return Err(Failure::text(Exit::Data, text));
    }
    let primaries = named(workflow, Role::Primary);
    if !primaries.is_empty() {
        let primaries = primaries.join(", ");
        output::note(format_args!("cwasi: not deployed: {primaries}, which cwasi run {file} runs"));
    }
    Ok(())
}

/// Names the functions whose schedule nothing on a node follows.
pub fn note_schedules(workflow: &Workflow) {
    for function in scheduled(workflow) {
        output::note(format_args!(
            "cwasi: function {function}: run starts it once; only a cluster follows its `schedule`"
        ));
    }
}

fn named(workflow: &Workflow, role: Role) -> Vec<&str> {
    let functions = workflow.functions.iter().filter(|function| function.role == role);
    functions.map(|function| function.name.as_str()).collect()
}

fn scheduled(workflow: &Workflow) -> impl Iterator<Item = &str> {
    let functions = workflow.functions.iter();
    let scheduled = functions.filter(|function| function.cluster.schedule.is_some());
    scheduled.map(|function| function.name.as_str())
}
