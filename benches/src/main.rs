//! `cwasi-bench`: runs the whole-path benches (`make bench`, `make bench-quick`) and the
//! curves of growing costs (`make bench-scale`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use cwasi_bench::cases::GROUPS;
use cwasi_bench::peers::{Peer, run_client, run_handler, run_server};
use cwasi_bench::plan::Effort;
use cwasi_bench::report::terminal::print_summary;
use cwasi_bench::revisions::{changes, read};
use cwasi_bench::session::Session;

#[derive(Parser)]
#[command(about = "CWASI beside what one would otherwise use")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Every case, with many repeats.
    Run(Selection),
    /// What bars and tables need, in less than 5 minutes.
    Quick(Selection),
    /// One round of one call of each case: shows that they work, says nothing about time.
    Smoke(Selection),
    /// How cost grows with functions, callers, chains, payloads, instances, nodes and calls in flight.
    Scale(Growth),
    /// Compares reports of two sides that took turns: revisions (`make bench-ab`) or engines (`make bench-engines`).
    Compare(Reports),
    /// The client of a baseline.
    #[command(hide = true)]
    Peer(Peer),
    /// A server of a baseline.
    #[command(hide = true)]
    PeerServer(Peer),
    /// The function behind the baseline with a process for each request.
    #[command(hide = true)]
    Handler,
}

#[derive(Args)]
struct Selection {
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    case: String,
    /// Folder for report.json and report.html; by default bench/ beside the build's profile.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct Growth {
    /// Fewer amounts and repeats, in less than 4 minutes.
    #[arg(long)]
    quick: bool,
    /// The first amounts, once: shows that the curves work.
    #[arg(long, hide = true, conflicts_with = "quick")]
    smoke: bool,
    /// Only groups of curves whose name contains this, such as `functions` or `payload`.
    #[arg(long, default_value = "")]
    case: String,
    /// Folder for report.json, report.csv and report.html; by default bench-scale/ beside the build's profile.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct Reports {
    /// report.json of each run of the base.
    #[arg(long, required = true, num_args = 1..)]
    base: Vec<PathBuf>,
    /// report.json of each run of the present tree.
    #[arg(long, required = true, num_args = 1..)]
    present: Vec<PathBuf>,
    /// What the base is called.
    #[arg(long, default_value = "base")]
    base_name: String,
    /// What the other side is called.
    #[arg(long, default_value = "present")]
    present_name: String,
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().verb {
        Verb::Run(selection) => run(Effort::Full, selection),
        Verb::Quick(selection) => run(Effort::Quick, selection),
        Verb::Smoke(selection) => run(Effort::Smoke, selection),
        Verb::Scale(growth) => scale(growth),
        Verb::Compare(reports) => compare(&reports),
        Verb::Peer(peer) => run_client(&peer).map(|()| ExitCode::SUCCESS),
        Verb::Handler => run_handler().map(|()| ExitCode::SUCCESS),
        Verb::PeerServer(peer) => run_server(&peer).map(|()| ExitCode::SUCCESS),
    }
}

/// Fails when a case could not run; a bar that is missed is a finding, not a failure.
fn run(effort: Effort, selection: Selection) -> Result<ExitCode> {
    let (programs, beside) = places("bench")?;
    let out = selection.out.unwrap_or(beside);
    let mut session = Session::new(effort, programs, &selection.case);
    for group in &GROUPS {
        group.measure(&mut session);
    }
    let mut report = session.report;
    anyhow::ensure!(!report.entries.is_empty(), "no case's name contains `{}`", selection.case);
    report.machine.finish();
    report.write(&out)?;
    print_summary(&report);
    eprintln!("{0}/report.html, {0}/report.json", out.display());
    Ok(if report.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails when a group of curves could not be measured; a curve that grows too fast is a finding, not a failure.
fn scale(growth: Growth) -> Result<ExitCode> {
    let (programs, beside) = places("bench-scale")?;
    let effort = match growth {
        Growth { smoke: true, .. } => Effort::Smoke,
        Growth { quick: true, .. } => Effort::Quick,
        _ => Effort::Full,
    };
    let report = cwasi_bench::scale::measure(effort, &programs, &growth.case)?;
    let out = growth.out.unwrap_or(beside);
    cwasi_bench::scale::write(&report, &out)?;
    println!("{}", report.table());
    eprintln!("{0}/report.html, {0}/report.json, {0}/report.csv", out.display());
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The folder of the programs, and one beside it of this name.
fn places(name: &str) -> Result<(PathBuf, PathBuf)> {
    let programs = std::env::current_exe()?.parent().context("a program has a folder")?.to_owned();
    let beside = programs.parent().unwrap_or(&programs).join(name);
    Ok((programs, beside))
}

fn compare(reports: &Reports) -> Result<ExitCode> {
    let [base, present] = [&reports.base_name, &reports.present_name];
    println!("{:<50} {base:>12} {present:>12} {:>9}", "medians", "ratio");
    for change in changes(&read(&reports.base)?, &read(&reports.present)?) {
        println!("{change}");
    }
    Ok(ExitCode::SUCCESS)
}
