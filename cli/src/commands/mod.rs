//! The verbs, one file each: its arguments, and `run`, which returns the command's exit code.

pub mod activation;
mod compile;
mod completions;
mod dashboard;
mod deploy;
mod doctor;
pub mod explain;
mod foreign_verbs;
mod gateway;
mod help;
mod image;
mod inspect;
pub mod invoke;
mod lint;
mod local_images;
mod log_entry;
pub mod log_lines;
pub mod log_printer;
pub mod logs;
mod man;
mod metrics;
mod on_cluster;
mod openwhisk;
pub mod ps;
pub mod rm;
mod run;
mod scale;
mod schema;
mod selected;
mod top;
pub mod trace;
mod workflow_arguments;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches as _, Parser, Subcommand};

use crate::arguments::{Given, Global};
use crate::deployment::check_named_config;
use crate::failure::Failure;

pub use self::foreign_verbs::with_ours;
pub use self::help::command;

/// Run and inspect workflows of WebAssembly functions on containerd
#[derive(Debug, Parser)]
#[command(name = "cwasi", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    /// What holds for every verb.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

impl Arguments {
    /// Reads a command line.
    ///
    /// # Errors
    /// When it is wrong.
    pub fn read(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut read = Self::from_arg_matches(matches)?;
        let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        read.global.given =
            Given { address: is_given("address"), namespace: is_given("namespace") };
        Ok(read)
    }
}

/// What a user can ask for.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a workflow to its end, and take it down
    Run(run::Run),
    /// Start the secondaries of a workflow, and leave them running
    Deploy(deploy::Deploy),
    /// List functions
    Ps(ps::Ps),
    /// Remove functions
    Rm(rm::Rm),
    /// Print what functions wrote
    Logs(logs::Logs),
    /// Start or remove containers of a function
    Scale(scale::Scale),
    /// Call a function
    Invoke(invoke::Invoke),
    /// Show calls: mode, rate and latency of each edge
    Top(top::Top),
    /// Show recorded traces: what called what, when, and for how long
    Trace(trace::ShowTrace),
    /// Find faults in a workflow file and its modules
    Lint(lint::Lint),
    /// Say which mode a call takes, and why not the others
    Explain(explain::Explain),
    /// Print what a module needs and offers
    Inspect(inspect::Inspect),
    /// Compile modules ahead of their first start
    Compile(compile::Compile),
    /// Build images of modules
    Image(image::ImageVerb),
    /// Examine this node
    Doctor(doctor::Doctor),
    /// Print a script that completes commands in a shell
    Completions(completions::Completions),
    /// Serve functions to HTTP clients
    Gateway(Box<gateway::Gateway>),
    /// Run actions of OpenWhisk and WOW for HTTP clients of this host, without containers
    Openwhisk(openwhisk::Openwhisk),
    /// Serve a page about the functions of this node
    Dashboard(dashboard::Dashboard),
    /// Print or serve metrics for Prometheus
    Metrics(metrics::Metrics),
    /// Write the manual pages
    Man(man::Man),
    /// Print the JSON Schema of workflow files
    Schema(schema::Schema),
}

impl Verb {
    /// True if it is to be done on a cluster.
    const fn is_on_cluster(&self) -> bool {
        match self {
            Self::Ps(verb) => verb.cluster.kube,
            Self::Rm(verb) => verb.cluster.kube,
            Self::Logs(verb) => verb.cluster.kube,
            Self::Invoke(verb) => verb.on.cluster.kube,
            Self::Trace(verb) => verb.on.cluster.kube,
            Self::Explain(verb) => verb.on.cluster.kube,
            _ => false,
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// When it fails; the error has the exit code.
pub async fn run(Arguments { global, verb }: Arguments) -> Result<ExitCode, Failure> {
    if verb.is_on_cluster() {
        return Err(on_cluster::exec());
    }
    check_named_config()?;
    match verb {
        Verb::Run(arguments) => arguments.run(&global).await,
        Verb::Deploy(arguments) => arguments.run(&global).await,
        Verb::Ps(arguments) => arguments.run(&global).await,
        Verb::Rm(arguments) => arguments.run(&global).await,
        Verb::Logs(arguments) => arguments.run(&global).await,
        Verb::Scale(arguments) => arguments.run(&global).await,
        Verb::Invoke(arguments) => arguments.run(&global).await,
        Verb::Top(arguments) => arguments.run(&global).await,
        Verb::Trace(arguments) => arguments.run(&global).await,
        Verb::Lint(arguments) => arguments.run(&global).await,
        Verb::Explain(arguments) => arguments.run(&global).await,
        Verb::Inspect(arguments) => arguments.run(&global).await,
        Verb::Compile(arguments) => arguments.run(&global).await,
        Verb::Image(arguments) => arguments.run(&global).await,
        Verb::Doctor(arguments) => arguments.run(&global).await,
        Verb::Completions(arguments) => arguments.run(&global),
        Verb::Gateway(arguments) => arguments.run(&global).await,
        Verb::Openwhisk(arguments) => arguments.run(&global).await,
        Verb::Dashboard(arguments) => arguments.run(&global).await,
        Verb::Metrics(arguments) => arguments.run(&global).await,
        Verb::Man(arguments) => arguments.run(&global),
        Verb::Schema(arguments) => arguments.run(&global),
    }
}
