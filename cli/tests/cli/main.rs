//! The command as a user runs it.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod artifacts;
mod attacks;
mod dashboard;
mod doctor;
mod explain;
mod files;
mod generated;
mod home;
mod host_calls;
mod interrupts;
mod local;
mod metrics;
mod on_cluster;
mod openwhisk;
mod outputs;
mod precompiled;
mod registry;
mod scene;
mod schema;
mod server;
mod services;
mod terminal;
mod texts;
mod traces;
mod unhappy;
mod verbs;
mod workflows;

use std::process::{Command, Output};

use cwasi_testbed::engines::tested_program;

fn cwasi() -> Command {
    let mut command = Command::new(tested_program(env!("CARGO_BIN_EXE_cwasi")));
    command.env_remove("CONTAINERD_ADDRESS").env_remove("CONTAINERD_NAMESPACE");
    command
}

/// What it wrote to stdout.
fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it wrote to stderr.
fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
