//! `cwasi deploy FILE`: makes the containers of a workflow's secondaries, and of the services that they use, those that
//! the file says, and leaves them running.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::workflow_arguments::WorkflowArguments;
use crate::arguments::Global;
use crate::deployment::display::TAKING_DOWN;
use crate::deployment::{Deployed, Deployment, Outdated, left_out};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use cwasi_workflow::Role;

/// Functions that stay.
const ROLES: [Role; 1] = [Role::Secondary];

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Deploy {
    #[command(flatten)]
    workflow: WorkflowArguments,
}

impl Deploy {
    /// Deploys the workflow; takes down what it started if one function does not start.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let workflow = self.workflow.load()?;
        left_out::by_deploy(&workflow, &self.workflow.file)?;
        let mut interrupt = Interrupt::new()?;
        let deployment = interrupt.or(Deployment::new(&workflow, global)).await?;
        let outcome = interrupt
            .or(async {
                deployment.write_images(&ROLES).await?;
                let mut deployed = deployment.start_services(&ROLES, Outdated::Replace).await?;
                deployed.extend(deployment.start_secondaries(Outdated::Replace).await?);
                Ok(deployed)
            })
            .await;
        let deployed = match outcome {
            Ok(deployed) => deployed,
            Err(failure) => {
                if failure.exit().is_signal() {
                    deployment.display().note(TAKING_DOWN);
                }
                let taken_down = deployment.take_down().await;
                if failure.exit().is_signal() {
                    deployment.clear_late_starts().await;
                }
                taken_down.and(deployment.finish_replacements().await)?;
                return Err(failure);
            }
        };
        // What runs stays, whatever becomes of the rest.
        let mut pruned = deployment.prune().await?;
        pruned.extend(deployment.remove_unused_services().await?);
        let word = |deployed| if deployed == Deployed::Started { "started" } else { "unchanged" };
        let started = deployed.iter().map(|(id, state)| (id, word(*state)));
        let changes = started.chain(pruned.iter().map(|id| (id, "removed")));
        if global.json {
            let containers: Vec<_> =
                changes.map(|(id, state)| json!({ "container": id, "state": state })).collect();
            output::json(&containers)?;
        } else {
            for (id, state) in changes {
                output::line(format_args!("{id} {state}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
