//! `cwasi run FILE`: starts what does not run, runs the primaries, shows the calls, takes down what it started.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::workflow_arguments::WorkflowArguments;
use crate::arguments::Global;
use crate::deployment::{Deployment, hops};
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    workflow: WorkflowArguments,
    /// Leave running what was started
    #[arg(long)]
    keep: bool,
}

impl Run {
    /// Runs the workflow. The exit code is the first primary's that is not 0.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let workflow = self.workflow.load()?;
        let mut interrupt = Interrupt::new()?;
        let deployment = interrupt.or(Deployment::new(&workflow, global)).await?;
        let before = deployment.hops();
        let outcome = interrupt
            .or(async {
                deployment.write_images().await?;
                deployment.start_secondaries().await?;
                deployment.run_primaries(global.json).await
            })
            .await;
        if let Err(failure) = &outcome
            && failure.exit() == Exit::Interrupted
        {
            deployment.display().say("cwasi: interrupted, taking down what was started");
        }
        // From here on a signal must not leave anything behind: `interrupt` still receives them.
        let taken_down = if self.keep && outcome.is_ok() {
            Ok(())
        } else {
            // The last calls are written when the functions end.
            deployment.stop().await
        };
        let hops = hops::since(&before, deployment.hops());
        let taken_down = match self.keep && outcome.is_ok() {
            true => taken_down,
            false => taken_down.and(deployment.take_down().await),
        };
        let exit = outcome?;
        taken_down?;
        if global.json {
            println!("{}", serde_json::to_string_pretty(&json!({ "exit": exit, "hops": hops }))?);
        } else if !hops.is_empty() {
            deployment.display().say(&format!("\n{}", hops::table(&hops)));
        }
        Ok(ExitCode::from(u8::try_from(exit).unwrap_or(u8::MAX)))
    }
}
