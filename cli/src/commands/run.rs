//! `cwasi run FILE`: starts what does not run, runs the primaries, shows the calls, takes down what it started.

use std::process::ExitCode;

use clap::Args;
use cwasi_dispatcher::spans::OpenSpan;
use cwasi_host::metrics::snapshot::EdgeSnapshot;
use serde_json::json;

use super::workflow_arguments::WorkflowArguments;
use crate::arguments::Global;
use crate::deployment::display::{Display, TAKING_DOWN};
use crate::deployment::platform::Platform;
use crate::deployment::{Deployment, Outdated, hops, left_out};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::traces::LAST;
use cwasi_workflow::Role;

/// Functions that a run starts.
const ROLES: [Role; 2] = [Role::Primary, Role::Secondary];

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    workflow: WorkflowArguments,
    /// Leave running what was started
    #[arg(long)]
    keep: bool,
    /// Run without containerd and without root
    ///
    /// Functions are processes of this user, in a temporary folder. Their isolation is weaker than that of containers:
    /// the engine, a seccomp filter and Landlock stand between a function and this user's files, and there are no
    /// namespaces and no cgroups. Compiled modules are kept in $XDG_CACHE_HOME/cwasi.
    #[arg(long, conflicts_with = "keep")]
    local: bool,
}

impl Run {
    /// Runs the workflow. The exit code is the first primary's that is not 0.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let workflow = self.workflow.load()?;
        left_out::by_run(&workflow, &self.workflow.file)?;
        let mut interrupt = Interrupt::new()?;
        let span = OpenSpan::root();
        if self.local {
            let deployment = interrupt.or(Deployment::local(&workflow, global)).await?;
            let deployment = deployment.traced(span.context);
            let ended = drive(&deployment, span, &mut interrupt, global, self.keep).await;
            let display = deployment.display().clone();
            deployment.end().await;
            ended.print(&display, span, global)
        } else {
            let deployment = interrupt.or(Deployment::new(&workflow, global)).await?;
            let deployment = deployment.traced(span.context);
            let ended = drive(&deployment, span, &mut interrupt, global, self.keep).await;
            ended.print(deployment.display(), span, global)
        }
    }
}

/// How a run ended.
struct EndedRun {
    /// The exit code of the primaries.
    exit: Result<u32, Failure>,
    taken_down: Result<(), Failure>,
    hops: Vec<EdgeSnapshot>,
}

impl EndedRun {
    /// The exit code that the command will have.
    fn code(&self) -> i32 {
        let code = self.exit.as_ref().map_or_else(|failure| failure.exit() as u32, |exit| *exit);
        i32::try_from(code).unwrap_or(i32::MAX)
    }

    /// Prints the calls and the id of the trace.
    fn print(
        self,
        display: &Display,
        span: OpenSpan,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        let (exit, hops, run) = (self.exit?, self.hops, span.context.trace);
        self.taken_down?;
        if global.json {
            let result = json!({ "exit": exit, "hops": hops, "run": run });
            output::json(&result)?;
        } else if !hops.is_empty() {
            display.note(&format!("\n{}", hops::table(&hops)));
        }
        if !global.json {
            display.note(&format!("run {run}: cwasi trace {LAST} shows it"));
        }
        Ok(ExitCode::from(u8::try_from(exit).unwrap_or(u8::MAX)))
    }
}

/// Starts, runs and takes down; `span` is that of the whole run.
async fn drive<P: Platform>(
    deployment: &Deployment<'_, P>,
    span: OpenSpan,
    interrupt: &mut Interrupt,
    global: &Global,
    keep: bool,
) -> EndedRun {
    let before = deployment.hops();
    let outcome = interrupt
        .or(async {
            deployment.write_images(&ROLES).await?;
            deployment.start_services(&ROLES, Outdated::Refuse).await?;
            deployment.start_secondaries(Outdated::Refuse).await?;
            deployment.run_primaries(global.json).await
        })
        .await;
    if let Err(failure) = &outcome
        && failure.exit().is_signal()
    {
        deployment.display().note(TAKING_DOWN);
    }
    // From here on a signal must not leave anything behind: `interrupt` still receives them.
    let is_kept = keep && outcome.is_ok();
    // The last calls are written when the functions end.
    let stopped = if is_kept { Ok(()) } else { deployment.stop().await };
    let hops = hops::since(&before, deployment.hops());
    let taken_down = if is_kept { stopped } else { stopped.and(deployment.take_down().await) };
    if outcome.as_ref().is_err_and(|failure| failure.exit().is_signal()) {
        deployment.clear_late_starts().await;
    }
    let ended = EndedRun { exit: outcome, taken_down, hops };
    deployment.record_run(span, ended.code()).await;
    ended
}
